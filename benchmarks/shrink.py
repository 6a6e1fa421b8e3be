"""What copies made for training cost and win: `python benchmarks/shrink.py LIST [--checkpoint FILE]`.

Copies every video of the list with several settings and compares the copies with the originals:

* PSNR of all their frames against the frames of the originals, resized alike: what the encoder loses.
* Size of the files and time to decode one window of 2.56 s, 8 frames: CPU time of one thread, file opened each time,
  original and copies in turn.
* Cosine between the features of a copy and of its original: mean over videos, and the lowest. Beside it, for scale,
  the cosine between the originals of different videos: mean over all pairs, and mean of that to the nearest one; and
  the share of copies whose nearest original is their own.
"""

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import finish, one_thread, paired, table

from vidssl.apps.shrink import ShrinkSettings as Settings
from vidssl.apps.shrink import shrink
from vidssl.apps.shrink.encode_copies import resized
from vidssl.base.keyed_generators import generator
from vidssl.cli import guarded
from vidssl.data import VideoList, read_list
from vidssl.data.clip_samplers import Random
from vidssl.evaluation.features import extract_features
from vidssl.jobs.job import NetworkOptions
from vidssl.jobs.load_network import Subject, load_subject
from vidssl.video import open_video

SIZES = {128: 112, 256: 224}  # short side of the copies, and side of the crops that are cut from them
QUALITIES = (15, 18, 21, 24)
Row = dict[str, Any]  # of the table
SAMPLER = Random(Random.Config(frames=8, seconds=2.56))


@dataclass(frozen=True)
class Copies:
    """The videos of a list with other settings."""

    settings: Settings
    videos: VideoList
    before: int  # bytes
    after: int
    seconds: float  # that copying took


def copied(videos: VideoList, out: Path, settings: Settings, workers: int) -> Copies:
    """Copy a list."""
    options = {"short_side": settings.short_side, "quality": settings.quality, "workers": workers}
    made = shrink(videos.path, out=out, root=videos.root, **options)
    if made.left_out:
        raise SystemExit(f"videos that cannot be decoded: {', '.join(made.left_out)}; run a check first")
    return Copies(settings, read_list(made.list), made.before, made.after, made.seconds)


def psnr(videos: VideoList, copies: Copies) -> float:
    """Mean over videos of the mean over frames, in dB."""
    means = []
    for one, other in zip(videos.records, copies.videos.records, strict=True):
        with open_video(one.path) as original, open_video(other.path) as copy:
            values = []
            for image, found in zip(original.iter_frames(), copy.iter_frames(), strict=True):
                wanted = resized(image, copies.settings.short_side)
                error = np.mean((wanted.astype(np.float32) - found) ** 2)
                values.append(10 * np.log10(255**2 / max(error, 1e-2)))
            means.append(np.mean(values))
    return float(np.mean(means))


def window(videos: VideoList, number: int) -> object:
    """Decode a random window of one of the videos."""
    with open_video(videos.records[number % len(videos)].path) as video:
        (clip,) = SAMPLER(video.meta, [generator(number)])
        return video.frames(clip.indices)


def features(network: Subject, videos: VideoList, size: int) -> torch.Tensor:
    """Unit features (N, D) of all videos, from crops of a size."""
    test = network.test.model_copy(update={"size": size})
    return torch.nn.functional.normalize(extract_features(network.backbone, videos, test, network.device).x, dim=1)


def compared(originals: torch.Tensor, copies: torch.Tensor) -> dict[str, float]:
    """How near copies are to their originals, and how near originals are to each other."""
    own = (originals * copies).sum(dim=1)
    among = originals @ originals.T
    others = among[~torch.eye(len(originals), dtype=torch.bool)].reshape(len(originals), -1)
    hits = (copies @ originals.T).argmax(dim=1) == torch.arange(len(originals))
    return {
        "cosine": float(own.mean()),
        "lowest": float(own.min()),
        "others": float(others.mean()),
        "nearest_other": float(others.max(dim=1).values.mean()),
        "own_first": float(hits.float().mean()),
    }


def measure(videos: VideoList, side: int, networks: dict[str, Subject], folder: Path, workers: int) -> list[Row]:
    """Copy the videos with all qualities and compare: one row for each."""
    versions = [copied(videos, folder / f"{side}-{crf}", Settings(side, crf), workers) for crf in QUALITIES]
    actions = {0: partial(window, videos)} | {n: partial(window, c.videos) for n, c in enumerate(versions, start=1)}
    times = paired({str(n): action for n, action in actions.items()}, 2 * len(videos))
    wanted = {name: features(network, videos, SIZES[side]) for name, network in networks.items()}
    rows: list[Row] = []
    for number, copies in enumerate(versions, start=1):
        rows.append(
            {
                "short_side": side,
                "quality": copies.settings.quality,
                "psnr": psnr(videos, copies),
                "size": copies.after / copies.before,
                "ms": float(times[str(number)].mean()),
                "ms_original": float(times["0"].mean()),
                "copying_seconds": copies.seconds,
                **{
                    name: compared(wanted[name], features(network, copies.videos, SIZES[side]))
                    for name, network in networks.items()
                },
            }
        )
    return rows


def shown(row: Row, networks: Iterable[str]) -> list[str]:
    """One line of the table."""
    cells = [f"{row['short_side']}", f"{row['quality']}", f"{row['psnr']:.1f}", f"{row['size']:.2f}"]
    cells.append(f"{row['ms']:.1f} ({row['ms_original'] / row['ms']:.1f}x)")
    for name in networks:
        found = row[name]
        cells.append(f"{found['cosine']:.4f} (lowest {found['lowest']:.4f})")
        cells.append(f"{found['others']:.4f} (nearest {found['nearest_other']:.4f})")
        cells.append(f"{100 * found['own_first']:.0f} %")
    return cells


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="list of videos")
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument(
        "--cfg", type=Path, default=Path("configs/studies/small_video/sce.yaml"), help="of the untrained network"
    )
    parser.add_argument("--checkpoint", help="of a trained network")
    parser.add_argument("--clips", type=int, help="of each video, for its features (default: the run's)")
    parser.add_argument("--workers", type=int, default=2, help="processes that copy and decode (default 2)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    one_thread()
    videos = read_list(arguments.list, arguments.root)
    given: NetworkOptions = {"workers": arguments.workers}
    if arguments.clips is not None:
        given["clips"] = arguments.clips
    networks = {"untrained": load_subject("random", {**given, "cfg": arguments.cfg})}
    if arguments.checkpoint:
        networks["trained"] = load_subject(arguments.checkpoint, given)
    header = ["short side", "CRF", "PSNR, dB", "size, times the original", "ms per clip (times faster)"]
    for name in networks:
        header += [f"{name}: cosine to the original", "between originals", "own original first"]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for side in SIZES:
            rows += measure(videos, side, networks, Path(folder), arguments.workers)
    print(f"{len(videos)} videos; originals: {rows[0]['ms_original']:.1f} ms per clip\n")
    print(table(header, [shown(row, networks) for row in rows]))
    finish({"list": str(arguments.list), "videos": len(videos), "rows": rows}, arguments.json)


if __name__ == "__main__":
    guarded(main)
