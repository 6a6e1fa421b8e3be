"""The command `vidssl`, and how every command ends: quietly, or with one line and a status that is not 0."""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import vidssl
from vidssl.commands.analyses import ANALYSES
from vidssl.commands.arguments import (
    above_zero,
    add_file_options,
    add_options,
    at_least,
    chooser,
    options_of,
    parse,
    protocol_choices,
    splits,
)
from vidssl.errors import Interrupted, PeerError, VidsslError

# Each command imports its job once its arguments are read: --help and a mistyped option need no torch.

INTERRUPTED = 75  # exit status of a run that was told to stop, has saved, and wants to be started again


def guarded(command: Callable[[], None]) -> None:
    """Run a command; print what the user can mend as one line and exit with status 2.

    Other statuses: 75 after SIGTERM or SIGUSR1, when the run is saved; 130 after Ctrl-C; 1 where a process is lost or
    there is a bug.
    """
    start_log()
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


def start_log() -> None:
    """Log to stderr, with time and rank."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s%(rank)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Formatter(logging.Formatter):
    """Adds the rank where a run has several processes; looked up for each line, as Slurm's is set after the start."""

    def format(self, record: logging.LogRecord) -> str:
        several = os.environ.get("WORLD_SIZE", "1") != "1"
        record.rank = f" rank {os.environ.get('RANK', '?')}" if several else ""
        return super().format(record)


def prepare(options: argparse.Namespace, write: Callable[..., object]) -> None:
    """Write lists with the options of a script in datasets/, and print the report."""
    print(write(**vars(options)))
    print(f"lists written to {options.out}")


def _print(*lines: object) -> None:
    """Print, in the main process only."""
    from vidssl import distributed

    if distributed.is_main():
        print(*lines, sep="\n")


def train(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Train, or go on training: everything that a config file describes."""
    parser = argparse.ArgumentParser(prog=prog, description=train.__doc__)
    parser.add_argument("--cfg", type=Path, required=True, help="config file (YAML)")
    parser.add_argument(
        "--splits",
        type=splits,
        help="for 1,2,3: train and test once for each, with its number for {split} in the config",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings over those of the file")
    parsed = parse(parser, arguments)
    from vidssl.commands.test import summary, train_splits
    from vidssl.engine import train as engine
    from vidssl.engine.run_config import load_run

    if parsed.splits is None:
        _print(engine.train(load_run(parsed.cfg, parsed.overrides)))
    else:
        results, path = train_splits(parsed.cfg, parsed.overrides, parsed.splits)
        _print(summary(results), path)


def test(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Measure a network on a list by the protocols of the field."""
    parser = argparse.ArgumentParser(prog=prog, description=test.__doc__)
    add_options(parser)
    parser.add_argument("--list", type=Path, required=True, help="list that is tested")
    parser.add_argument(
        "--train-list", type=Path, help="list of training videos, for protocols that compare with them"
    )
    parser.add_argument(
        "--protocol",
        nargs="+",
        metavar=("NAME", "KEY=VALUE"),
        help="what is measured, each followed by its settings: accuracy, knn, lowshot, retrieval, svm, uniformity",
    )
    parser.add_argument(
        "--splits", type=splits, help="for 1,2,3: once for each, with its number for {split} in the paths"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for results.json, tables and pictures"
    )
    parsed = parse(parser, arguments)
    from vidssl.commands.test import measure_splits, summary
    from vidssl.commands.test import test as measure

    protocols = None
    if parsed.protocol is not None:
        protocols, overrides = protocol_choices(parsed.protocol)
        parsed.overrides += overrides
    options = options_of(parsed)
    if parsed.splits is None:
        results = measure(options, parsed.list, parsed.out, parsed.train_list, protocols)
    else:
        results = measure_splits(
            options, parsed.list, parsed.out, parsed.splits, parsed.train_list, protocols
        )
    _print(summary(results), parsed.out / "results.json")


def retrieval(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Search a gallery with queries, or with one video: R@k, kNN, and a page to look at."""
    parser = argparse.ArgumentParser(prog=prog, description=retrieval.__doc__)
    add_options(parser)
    parser.add_argument("--gallery", type=Path, help="list to search in; not needed where --index is there")
    parser.add_argument("--query", type=Path, required=True, help="list of queries, or one video")
    parser.add_argument(
        "--index", type=Path, help="folder of the gallery's features; created if it does not exist"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json and index.html")
    parser.add_argument("--center", action="store_true", help="subtract the mean of each list first")
    parser.add_argument(
        "--k", type=at_least(1), default=10, help="neighbours that vote in kNN, or of one video (default 10)"
    )
    parser.add_argument(
        "--drop-duplicates",
        action="store_true",
        help="ignore gallery items whose feature is bit-identical to the query's (duplicate files)",
    )
    parser.add_argument(
        "--page-queries", type=at_least(0), default=48, help="queries on the page (default 48)"
    )
    parsed = parse(parser, arguments)
    if parsed.gallery is None and parsed.index is None:
        parser.error("there is no gallery: give --gallery LIST, --index FOLDER or both")
    from vidssl.commands.retrieval import find, is_video, retrieve, table

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
    _print(table(results), parsed.out / "index.html")


def extract(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Write the features of a list of videos into a folder: features.npy, rows.csv and meta.json."""
    parser = argparse.ArgumentParser(prog=prog, description=extract.__doc__)
    add_options(parser, required=False)
    parser.add_argument("--list", type=Path, help="list of videos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the features")
    parser.add_argument("--shard", metavar="i/n", help="only part i of n, from 0, into a file beside --out")
    parser.add_argument("--merge", action="store_true", help="write --out from its parts; needs nothing else")
    parsed = parse(parser, arguments)
    told = {name for name, value in vars(parsed).items() if value not in (parser.get_default(name), [])}
    if parsed.merge and told > {"merge", "out"}:
        parser.error("--merge goes with --out alone: the parts say what they were made from")
    if not parsed.merge and not told >= {"checkpoint", "list"}:
        parser.error("--checkpoint and --list are required; only --merge goes without them")
    from vidssl.commands.extract import extract_features, merge

    if parsed.merge:
        found = merge(parsed.out)
    else:
        found = extract_features(options_of(parsed), parsed.list, parsed.out, parsed.shard)
    _print(found)


def analyze(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Analyse what a network has learned."""
    parser = chooser(prog, analyze.__doc__, ANALYSES)
    parsed = parser.parse_args(arguments)
    ANALYSES[parsed.command](parsed.arguments, f"{parser.prog} {parsed.command}")


def track(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Track the regions of the videos of a list; exits with 1 if some videos cannot be read."""
    parser = argparse.ArgumentParser(prog=prog, description=track.__doc__)
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
        help="settings of the tracker, as size=128 search.short_side=96; docs/tracking.md lists them",
    )
    parser.add_argument(
        "--timeout", type=above_zero, default=120.0, help="seconds for a frame that mean it hangs (120)"
    )
    parsed = parse(parser, arguments)
    from vidssl.commands import track as tracking

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


def check(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Check the videos of a list, and write the list of the sound ones; exits with 1 if rows were left out."""
    parser = argparse.ArgumentParser(prog=prog, description=check.__doc__)
    add_file_options(parser)
    parser.add_argument("--allow-external", action="store_true", help="accept paths that leave the root")
    parser.add_argument("--min-frames", type=at_least(1), help="leave out what has fewer frames")
    parser.add_argument("--min-seconds", type=above_zero, help="leave out what is shorter")
    options = vars(parser.parse_args(arguments))
    from vidssl.commands import check as checking

    checked = checking.check(options.pop("list"), options.pop("out"), checking.Options(**options))
    print(checked)
    if checked.kept < checked.rows:
        sys.exit(1)


def shrink(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Copy the videos of a list into a form made for training; exits with 1 if some cannot be decoded."""
    parser = argparse.ArgumentParser(prog=prog, description=shrink.__doc__)
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
    from vidssl.commands import shrink as shrinking

    settings = shrinking.Settings(**{name: options.pop(name) for name in ("short_side", "quality", "fps")})
    shrunk = shrinking.shrink(options.pop("list"), options.pop("out"), settings, shrinking.Options(**options))
    print(shrunk)
    if shrunk.left_out:
        sys.exit(1)


def compare(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Compare the results of two backbones on one page: what `make demo` ends with."""
    parser = argparse.ArgumentParser(prog=prog, description=compare.__doc__)
    parser.add_argument("folder", type=Path, help="holds RUN/LABELS/results.json; index.html goes there")
    parser.add_argument(
        "--runs", nargs="+", default=["random", "trained"], help="the one to compare with first"
    )
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.jsonl of the training")
    parser.add_argument("--videos", type=Path, required=True, help="list whose classes are shown playing")
    parsed = parser.parse_args(arguments)
    from vidssl.commands import compare as comparing

    print(comparing.compare(parsed.folder, tuple(parsed.runs), parsed.metrics, parsed.videos))
    print(parsed.folder / "index.html")


def report(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Set results beside the published reference numbers: one table for each data set."""
    parser = argparse.ArgumentParser(prog=prog, description=report.__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="searched for results.json")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--out", type=Path, help="folder for report.md and report.html")
    place.add_argument("--into", type=Path, metavar="PAGE", help="Markdown page whose tables are made anew")
    parsed = parser.parse_args(arguments)
    from vidssl.commands import report as reporting

    if parsed.into is not None:
        print(reporting.update(parsed.into, parsed.folders))
    else:
        print(reporting.report(parsed.folders, parsed.out))


def schema(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Print the JSON schema of a config file, for editors that complete YAML."""
    argparse.ArgumentParser(prog=prog, description=schema.__doc__).parse_args(arguments)
    from vidssl.engine.run_config import schema as run_schema

    print(json.dumps(run_schema().model_json_schema(), indent=2))


def doctor(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Say what of vidssl works on this machine, and what to do about the rest."""
    argparse.ArgumentParser(prog=prog, description=doctor.__doc__).parse_args(arguments)
    from vidssl.commands.doctor import describe, examine

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
    guarded(lambda: _COMMANDS[parsed.command](parsed.arguments, f"vidssl {parsed.command}"))
