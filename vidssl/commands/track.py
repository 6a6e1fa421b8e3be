"""The command `track`: track the regions of the videos of a list."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vidssl.commands.arguments import (
    add_input,
    add_network_options,
    add_timeout,
    at_least,
    network_options,
    parse,
    print_results,
)
from vidssl.errors import ConfigError
from vidssl.workers import usable_cpus

if TYPE_CHECKING:
    from vidssl.commands.load import LoadOptions
    from vidssl.config import Tree
    from vidssl.tracking import Tracked, TrackerSettings


def track(arguments: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Track the regions of the videos of a list; exit with 1 if some videos cannot be read."""
    parser = argparse.ArgumentParser(prog=prog, description=track.__doc__)
    option = parser.add_argument
    add_input(parser)
    add_network_options(parser, clips=False)
    option("--out", type=Path, required=True, help="folder for tracks/, proposals/, overlays/")
    option("--shard", metavar="i/n", help="only part i of n, from 0")
    option(
        "--overlay",
        type=at_least(1),
        nargs="?",
        default=0,
        const=sys.maxsize,
        metavar="N",
        help="draw the tracks of the first N videos, or of all",
    )
    option(
        "--tracker",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the tracker, as size=128 search.short_side=96; docs/tracking.md lists them",
    )
    add_timeout(parser)
    parsed = parse(parser, arguments)
    done = track_videos(
        network_options(parsed),
        parsed.input,
        parsed.out,
        tracker_settings(parsed.tracker),
        shard=parsed.shard,
        overlays=parsed.overlay,
        timeout=parsed.timeout,
    )
    print_results(parsed, done, done)
    if done.left_out and not parsed.allow_missing:
        sys.exit(1)


def track_videos(
    options: "LoadOptions",
    videos: Path,
    out: Path,
    config: "TrackerSettings",
    *,
    shard: str | None = None,
    overlays: int = 0,
    timeout: float = 120.0,
) -> "Tracked":
    """Write the tracks of each video of a list, `out/tracks/<name>.npz`; files of an equal earlier run are kept.

    Args:
        options: The network. Its clips, crops, size and batch size must be None.
        videos: The list.
        out: Folder for the files.
        config: How regions are found and tracked.
        shard: `i/n`: only the videos i, i + n, i + 2n, … of the list.
        overlays: Number of videos, from the first, to draw with their tracks: `out/overlays/<name>.mp4`.
        timeout: Seconds per frame.

    Raises:
        ConfigError: The shard does not exist, the network cannot encode regions, or OpenCV has no selective search.
        DataError: The list cannot be read, or a file cannot be written.
    """
    from vidssl.atomic import check_folder
    from vidssl.commands.extract_features import shard_of
    from vidssl.commands.load import load_subject
    from vidssl.commands.track_overlays import draw_overlays
    from vidssl.data.video_list import read_list
    from vidssl.tracking import Tracker, track_list

    given = [name for name in ("clips", "crops", "size", "batch_size") if getattr(options, name) is not None]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{names}: tracking uses whole frames; set --tracker KEY=VALUE instead")
    check_folder(out)
    part = (0, 1) if shard is None else shard_of(shard)
    listed = read_list(videos, options.root, options.allow_external)
    subject = load_subject(options)
    test = subject.test
    done = track_list(
        Tracker(subject.backbone, config, subject.device, test.mean, test.std),
        listed,
        test,
        out,
        {"weights": subject.weights},
        workers=usable_cpus() if options.workers is None else options.workers,
        timeout=timeout,
        shard=part,
    )
    draw_overlays(listed, out, test, part, overlays, done.left_out)
    return done


def tracker_settings(texts: Sequence[str]) -> "TrackerSettings":
    """Parse `KEY=VALUE` texts; other settings have their defaults.

    Raises:
        ConfigError: Lists every mistake.
    """
    from vidssl.config import bind, override
    from vidssl.tracking import TrackerSettings

    tree: Tree = {}
    for text in texts:
        override(tree, text)
    return bind(TrackerSettings, tree, "--tracker")
