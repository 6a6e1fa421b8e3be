"""The command `vidssl`, and how every command ends: quietly, or with one line and a status that is not 0."""

import argparse
import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import vidssl
from vidssl import comm
from vidssl.analyses import ANALYSES
from vidssl.arguments import (
    above_zero,
    add_file_options,
    add_options,
    at_least,
    chooser,
    options_of,
    protocol_choices,
    splits,
)
from vidssl.engine import train as engine
from vidssl.engine.run import load_run
from vidssl.engine.run import schema as run_schema
from vidssl.errors import Interrupted, PeerError, VidsslError
from vidssl.evaluation import PROTOCOLS
from vidssl.jobs import check as checking
from vidssl.jobs import compare as comparing
from vidssl.jobs import report as reporting
from vidssl.jobs import shrink as shrinking
from vidssl.jobs import track as tracking
from vidssl.jobs.doctor import describe, examine
from vidssl.jobs.extract import extract_features, merge
from vidssl.jobs.retrieve import find, is_video, retrieve, table
from vidssl.jobs.test import measure_splits, summary, train_splits
from vidssl.jobs.test import test as measure

INTERRUPTED = 75  # exit status of a run that was told to stop, has saved, and wants to be started again


def guarded(command: Callable[[], None]) -> None:
    """Run a command; print what the user can mend as one line and exit with status 2.

    Other statuses: 75 after SIGTERM or SIGUSR1, when the run is saved; 130 after Ctrl-C; 1 where a process is lost or
    there is a bug.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        command()
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except VidsslError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # no room for a log or a page, for one
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as request:
        sys.exit(130 if request.signal == signal.SIGINT else INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(130)


def prepare(parser: argparse.ArgumentParser, write: Callable[..., object]) -> None:
    """Parse, write lists, and print the report."""
    options = vars(parser.parse_args())
    print(write(**options))
    print(f"lists written to {options['out']}")


def train(arguments: Sequence[str] | None = None) -> None:
    """Train, or go on training: everything that a config file describes."""
    parser = argparse.ArgumentParser(prog="train_net.py", description=train.__doc__)
    parser.add_argument("--cfg", type=Path, required=True, help="config file (YAML)")
    parser.add_argument(
        "--splits",
        type=splits,
        help="for 1,2,3: train and test once for each, with its number for {split} in the config",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings over those of the file")
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.splits is None:
        last = engine.train(load_run(parsed.cfg, parsed.overrides))
        if comm.is_main():
            print(last)
        return
    results, path = train_splits(parsed.cfg, parsed.overrides, parsed.splits)
    if comm.is_main():
        print(summary(results))
        print(path)


def test(arguments: Sequence[str] | None = None) -> None:
    """Measure a network on a list by the protocols of the field."""
    parser = argparse.ArgumentParser(prog="test_net.py", description=test.__doc__)
    add_options(parser)
    parser.add_argument("--list", type=Path, required=True, help="list that is tested")
    parser.add_argument(
        "--train-list", type=Path, help="list of training videos, for protocols that compare with them"
    )
    parser.add_argument(
        "--protocol",
        nargs="+",
        metavar=("NAME", "KEY=VALUE"),
        help=f"what is measured, each followed by its settings: {', '.join(PROTOCOLS)}",
    )
    parser.add_argument(
        "--splits", type=splits, help="for 1,2,3: once for each, with its number for {split} in the paths"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for results.json, tables and pictures"
    )
    parsed = parser.parse_intermixed_args(arguments)
    protocols = None if parsed.protocol is None else protocol_choices(parsed.protocol)
    options = options_of(parsed)
    if parsed.splits is None:
        results = measure(options, parsed.list, parsed.out, parsed.train_list, protocols)
    else:
        results = measure_splits(
            options, parsed.list, parsed.out, parsed.splits, parsed.train_list, protocols
        )
    if comm.is_main():
        print(summary(results))
        print(parsed.out / "results.json")


def retrieval(arguments: Sequence[str] | None = None) -> None:
    """Search a gallery with queries, or with one video: R@k, kNN, and a page to look at."""
    parser = argparse.ArgumentParser(prog="retrieval.py", description=retrieval.__doc__)
    add_options(parser)
    parser.add_argument("--gallery", type=Path, help="list to search in; not needed where --index is there")
    parser.add_argument("--query", type=Path, required=True, help="list of queries, or one video")
    parser.add_argument(
        "--index", type=Path, help="file with the features of the gallery (npz); made where it is missing"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and index.html")
    parser.add_argument("--center", action="store_true", help="subtract the mean of each list first")
    parser.add_argument(
        "--k", type=at_least(1), default=10, help="neighbours that vote in kNN, or of one video (default 10)"
    )
    parser.add_argument(
        "--drop-duplicates",
        action="store_true",
        help="leave out gallery videos of another path with the very feature of the query: its copies",
    )
    parser.add_argument(
        "--page-queries", type=at_least(0), default=48, help="queries on the page (default 48)"
    )
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.gallery is None and parsed.index is None:
        parser.error("--gallery LIST, --index FILE or both say what is searched")
    if parsed.center and is_video(parsed.query):
        parser.error("--center needs a list of queries: the mean of one video is the video itself")
    rest = {
        "index": parsed.index,
        "k": parsed.k,
        "drop_duplicates": parsed.drop_duplicates,
    }
    places = parsed.gallery, parsed.query, parsed.out
    if is_video(parsed.query):
        results = find(options_of(parsed), *places, **rest)
    else:
        results = retrieve(
            options_of(parsed), *places, **rest, center=parsed.center, shown_queries=parsed.page_queries
        )
    if comm.is_main():
        print(table(results))
        print(parsed.out / "index.html")


def extract(arguments: Sequence[str] | None = None) -> None:
    """Write the features of a list of videos: features, label, index and path in one npz file."""
    parser = argparse.ArgumentParser(prog="extract.py", description=extract.__doc__)
    add_options(parser, required=False)
    parser.add_argument("--list", type=Path, help="list of videos")
    parser.add_argument("--out", type=Path, required=True, help="npz file")
    parser.add_argument("--shard", metavar="i/n", help="only part i of n, from 0, into a file beside --out")
    parser.add_argument("--merge", action="store_true", help="write --out from its parts; needs nothing else")
    parsed = parser.parse_intermixed_args(arguments)
    told = {name for name, value in vars(parsed).items() if value not in (parser.get_default(name), [])}
    if parsed.merge and told > {"merge", "out"}:
        parser.error("--merge goes with --out alone: the parts say what they were made from")
    if not parsed.merge and not told >= {"checkpoint", "list"}:
        parser.error("--checkpoint and --list are required; only --merge goes without them")
    if parsed.merge:
        found = merge(parsed.out)
    else:
        found = extract_features(options_of(parsed), parsed.list, parsed.out, parsed.shard)
    if comm.is_main():
        print(found)


def analyze(arguments: Sequence[str] | None = None) -> None:
    """Analyse what a network has learned."""
    parser = chooser("analyze.py", analyze.__doc__, ANALYSES)
    parsed = parser.parse_args(arguments)
    ANALYSES[parsed.command](parsed.arguments)


def track(arguments: Sequence[str] | None = None) -> None:
    """Track the regions of the videos of a list; exits with 1 if some videos cannot be read."""
    parser = argparse.ArgumentParser(prog="track_regions.py", description=track.__doc__)
    parser.add_argument("list", type=Path, help="list of videos")
    add_options(parser, clips=False)
    parser.add_argument("--out", type=Path, required=True, help="folder for tracks/, proposals/, overlays/")
    parser.add_argument("--shard", metavar="i/n", help="only part i of n, from 0")
    parser.add_argument(
        "--overlay",
        type=at_least(1),
        nargs="?",
        default=0,
        const=sys.maxsize,
        metavar="N",
        help="draw the tracks of the first N videos, or of all",
    )
    parser.add_argument(
        "--tracker",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help=f"settings: {', '.join(tracking.setting_names())}; docs/tracking.md explains them",
    )
    parser.add_argument(
        "--timeout", type=above_zero, default=120.0, help="seconds for a frame that mean it hangs (120)"
    )
    parsed = parser.parse_intermixed_args(arguments)
    config = tracking.settings(parsed.tracker)
    options = options_of(parsed)
    done = tracking.track(
        options,
        parsed.list,
        parsed.out,
        config,
        shard=parsed.shard,
        overlays=parsed.overlay,
        timeout=parsed.timeout,
    )
    print(done)
    if done.left_out and not options.allow_missing:
        sys.exit(1)


def check(arguments: Sequence[str] | None = None) -> None:
    """Check the videos of a list, and write the list of the sound ones; exits with 1 if something was found."""
    parser = argparse.ArgumentParser(prog="check_videos.py", description=check.__doc__)
    add_file_options(parser)
    parser.add_argument("--allow-external", action="store_true", help="accept paths that leave the root")
    parser.add_argument("--min-frames", type=at_least(1), help="leave out what has fewer frames")
    parser.add_argument("--min-seconds", type=above_zero, help="leave out what is shorter")
    options = vars(parser.parse_args(arguments))
    checked = checking.check(options.pop("list"), options.pop("out"), checking.Options(**options))
    print(checked)
    if checked.findings:
        sys.exit(1)


def shrink(arguments: Sequence[str] | None = None) -> None:
    """Copy the videos of a list into a form made for training; exits with 1 if some cannot be decoded."""
    parser = argparse.ArgumentParser(prog="shrink_videos.py", description=shrink.__doc__)
    add_file_options(parser)
    parser.add_argument(
        "--short-side", type=at_least(2), default=128, help="pixels; nothing is enlarged (default 128)"
    )
    parser.add_argument(
        "--quality",
        type=int,
        choices=range(52),
        metavar="CRF",
        default=18,
        help="0 lossless … 51 (default 18)",
    )
    options = vars(parser.parse_args(arguments))
    settings = shrinking.Settings(**{name: options.pop(name) for name in ("short_side", "quality", "fps")})
    shrunk = shrinking.shrink(options.pop("list"), options.pop("out"), settings, shrinking.Options(**options))
    print(shrunk)
    if shrunk.left_out:
        sys.exit(1)


def compare(arguments: Sequence[str] | None = None) -> None:
    """Compare the results of two backbones on one page: what `make demo` ends with."""
    parser = argparse.ArgumentParser(prog="vidssl compare", description=compare.__doc__)
    parser.add_argument("folder", type=Path, help="holds RUN/LABELS/results.json; index.html goes there")
    parser.add_argument(
        "--runs", nargs="+", default=["random", "trained"], help="the one to compare with first"
    )
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.jsonl of the training")
    parser.add_argument("--videos", type=Path, required=True, help="list whose classes are shown playing")
    parsed = parser.parse_args(arguments)
    print(comparing.compare(parsed.folder, tuple(parsed.runs), parsed.metrics, parsed.videos))
    print(parsed.folder / "index.html")


def report(arguments: Sequence[str] | None = None) -> None:
    """Set results beside the published reference numbers: one table for each data set."""
    parser = argparse.ArgumentParser(prog="report.py", description=report.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="searched for results.json")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--out", type=Path, help="folder for report.md and report.html")
    place.add_argument("--into", type=Path, metavar="PAGE", help="Markdown page whose tables are made anew")
    parsed = parser.parse_args(arguments)
    if parsed.into is not None:
        print(reporting.update(parsed.into, parsed.folders))
    else:
        print(reporting.report(parsed.folders, parsed.out))


def schema(arguments: Sequence[str] | None = None) -> None:
    """Print the JSON schema of a config file, for editors that complete YAML."""
    argparse.ArgumentParser(prog="vidssl schema", description=schema.__doc__).parse_args(arguments)
    print(json.dumps(run_schema().model_json_schema(), indent=2))


def doctor(arguments: Sequence[str] | None = None) -> None:
    """Say what of vidssl works on this machine, and what to do about the rest."""
    argparse.ArgumentParser(prog="vidssl doctor", description=doctor.__doc__).parse_args(arguments)
    print(describe(examine()))


_COMMANDS = {
    "train": train,
    "test": test,
    "retrieval": retrieval,
    "extract": extract,
    "analyze": analyze,
    "check": check,
    "shrink": shrink,
    "track": track,
    "compare": compare,
    "report": report,
    "doctor": doctor,
    "schema": schema,
}


def main() -> None:
    """Run `vidssl COMMAND …`."""
    parser = chooser("vidssl", "Self-supervised learning of video representations.", _COMMANDS)
    parser.add_argument("--version", action="version", version=vidssl.__version__)
    parsed = parser.parse_args()
    guarded(lambda: _COMMANDS[parsed.command](parsed.arguments))
