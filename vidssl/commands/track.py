"""The command `track`: track the regions of the videos of a list."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vidssl.atomic import check_folder
from vidssl.commands.arguments import print_results
from vidssl.commands.extract import shard_of
from vidssl.commands.load import LoadOptions, load_subject, network_options
from vidssl.commands.track_overlays import draw_overlays
from vidssl.config import Tree, bind, override
from vidssl.data.video_list import read_list
from vidssl.tracking import Tracked, TrackerSettings, track_list
from vidssl.workers import usable_cpus


def run(parsed: argparse.Namespace) -> None:
    """Track, and exit with 1 if some videos cannot be read."""
    settings = tracker_settings(parsed.tracker)
    rest = {"shard": parsed.shard, "overlays": parsed.overlay, "timeout": parsed.timeout}
    done = track_videos(network_options(parsed), parsed.input, parsed.out, settings, **rest)
    print_results(parsed, done, done)
    if done.left_out and not parsed.allow_missing:
        sys.exit(1)


def track_videos(
    options: LoadOptions,
    videos: Path,
    out: Path,
    config: TrackerSettings,
    *,
    shard: str | None = None,
    overlays: int = 0,
    timeout: float = 120.0,
) -> Tracked:
    """Write the tracks of each video of a list, `out/tracks/<name>.npz`; files of an equal earlier run are kept.

    Args:
        options: The network. Its clips, crops, size and batch size are not used: whole frames are.
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
    check_folder(out)
    part = (0, 1) if shard is None else shard_of(shard)
    listed = read_list(videos, options.root, options.allow_external)
    subject = load_subject(options)
    test = subject.test
    done = track_list(
        subject.backbone,
        listed,
        out,
        config,
        subject.device,
        test.mean,
        test.std,
        {"weights": subject.weights},
        reading=test,
        workers=usable_cpus() if options.workers is None else options.workers,
        timeout=timeout,
        shard=part,
    )
    draw_overlays(listed, out, test, part, overlays, done.left_out)
    return done


def tracker_settings(texts: Sequence[str]) -> TrackerSettings:
    """Parse `KEY=VALUE` texts; other settings have their defaults.

    Raises:
        ConfigError: Lists every mistake.
    """
    tree: Tree = {}
    for text in texts:
        override(tree, text)
    return bind(TrackerSettings, tree, "--tracker")
