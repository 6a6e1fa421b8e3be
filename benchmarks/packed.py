"""What packed frames cost and gain, beside files, shrunk copies and webdataset: `python benchmarks/packed.py LIST`.

Every video of the list is copied as H.264 with key frames only, as JPEG and as WebP frames. Compared are

* clips per second of one core, 8 frames in 2.56 s: decoding alone, and with a view of the recipe `strong`. CPU time of
  one process; all readers take their turn in each round, on the same clip of the same video; medians of the ratios.
  webdataset reads the same JPEG shards: all frames of a video in the order of the shard, of which a clip is decoded.
* Bytes of a video; PSNR of the frames of 100 videos against those of the original at the same size.
* With --test-list: cosine between the features of copy and original (mean, lowest), and kNN of the test list in LIST.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from measure import finish, one_thread, paired, ratio, table

from vidssl.apps.shrink import shrink
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features, Frames, VideoMeta
from vidssl.cli import guarded
from vidssl.data import ClipDataset, VideoList, read_list
from vidssl.data.clip_samplers import Random
from vidssl.evaluation.features import extract_features
from vidssl.evaluation.protocols import KNN
from vidssl.jobs.load_network import Subject, load_subject
from vidssl.transforms import RECIPES
from vidssl.transforms.recipes import Recipe
from vidssl.video import open_video
from vidssl.video.packed_frames import INDEX

SAMPLER = Random(Random.Config(frames=8, seconds=2.56))
FILES, JPEG = "files", "packed, JPEG 90"
WEBDATASET = "webdataset, JPEG"


def copied(lists: list[Path], root: Path | None, out: Path, side: int, workers: int) -> dict[str, Path]:
    """Copy the lists in every format: the folders of the copies by name of the format."""
    formats: dict[str, dict[str, Any]] = {
        "shrunk copies, CRF 18": {"short_side": side},
        JPEG: {"short_side": side, "to": "frames"},
        "packed, WebP 90": {"short_side": side, "to": "frames", "format": "webp"},
    }
    folders = {}
    for number, (name, settings) in enumerate(formats.items()):
        folders[name] = out / str(number)
        for videos in lists:
            shrink(videos, out=folders[name], root=root, workers=workers, **settings)
    return folders


def decoded(videos: VideoList, number: int) -> Frames:
    """Decode a random clip of one of the videos."""
    with open_video(videos.records[number % len(videos)].path) as video:
        (clip,) = SAMPLER(video.meta, [generator(0, number)])
        return video.frames(clip.indices)


def sample(dataset: ClipDataset, number: int) -> object:
    """Decode a random clip of one of the videos, and make a view of it."""
    return dataset[number, number % len(dataset)]


def web_clips(shards: Path) -> Iterator[Frames]:
    """Yield a random clip of each video of the shards, in their order, without end, as a user of webdataset would."""
    import webdataset

    urls, number = [str(path) for path in sorted(shards.glob("shard-*.tar"))], 0
    while True:
        for found in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False):
            about = json.loads(found["json"])
            meta = VideoMeta(about["num_frames"], about["fps"], about["height"], about["width"])
            (clip,) = SAMPLER(meta, [generator(0, number)])
            encoded = (np.frombuffer(found[f"{frame:06d}.jpg"], np.uint8) for frame in clip.indices)
            frames = np.stack([cv2.imdecode(image, cv2.IMREAD_COLOR_RGB) for image in encoded])
            yield frames.astype(np.uint8, copy=False).transpose(0, 3, 1, 2)
            number += 1


def psnr(originals: VideoList, copies: VideoList) -> float:
    """Mean over videos, at most about 100, of the mean over frames, in dB."""
    means, step = [], -(-len(originals) // 100)
    for one, other in zip(originals.records[::step], copies.records[::step], strict=True):
        with open_video(one.path) as original, open_video(other.path) as copy:
            values = []
            for image, found in zip(original.iter_frames(), copy.iter_frames(), strict=True):
                height, width = found.shape[:2]
                wanted = image[:height, :width]  # small videos lose an odd row or column in H.264
                if max(image.shape[0] - height, image.shape[1] - width) > 1:
                    wanted = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
                error = np.mean((wanted.astype(np.float32) - found) ** 2)
                values.append(10 * np.log10(255**2 / max(float(error), 1e-2)))
            means.append(np.mean(values))
    return float(np.mean(means))


def stored(lists: list[VideoList]) -> float:
    """Bytes of a video, mean over all lists; of packed frames all tar files and the index count."""
    folder, paths = lists[0].root, {record.path for videos in lists for record in videos.records}
    if shards := list(folder.glob("shard-*.tar")):
        return sum(path.stat().st_size for path in [*shards, folder / INDEX]) / len(paths)
    return float(np.mean([Path(path).stat().st_size for path in paths]))


def features(network: Subject, videos: VideoList) -> Features:
    """Features of all videos."""
    return extract_features(network.backbone, videos, network.test, network.device)


def compared(wanted: list[Features], found: list[Features]) -> dict[str, float]:
    """Cosines of the gallery's features to those of the originals, and kNN accuracy of the queries in the gallery."""
    own = torch.nn.functional.cosine_similarity(wanted[0].x, found[0].x)
    gallery, query = found
    knn = KNN(KNN.Config())(gallery, query, torch.empty((0, 2), dtype=torch.int64))  # no pairs to exclude
    return {"cosine": float(own.mean()), "lowest": float(own.min()), "knn": knn.numbers["knn"]}


def timed(lists: dict[str, VideoList], shards: Path, size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Time all readers: clips per second and ratio to the files, for decoding and for whole samples."""
    recipe: Recipe = RECIPES["strong"](RECIPES["strong"].Config(size=size))
    clips, more = web_clips(shards), web_clips(shards)
    rng = partial(generator, 1)
    decode: dict[str, Callable[[int], object]] = {n: partial(decoded, videos) for n, videos in lists.items()}
    decode[WEBDATASET] = lambda number: next(clips)
    whole: dict[str, Callable[[int], object]] = {
        n: partial(sample, ClipDataset(videos, SAMPLER, [recipe])) for n, videos in lists.items()
    }
    whole[WEBDATASET] = lambda number: recipe(next(more), rng(number))
    for videos in lists.values():  # the packet indices of files are cached, as in an epoch after the first
        for number in range(len(videos)):
            open_video(videos.records[number].path).close()
    results: dict[str, dict[str, float]] = {name: {} for name in decode}
    for what, actions in (("decode", decode), ("sample", whole)):
        times = paired(actions, rounds)
        for name in actions:
            results[name][what] = 1000 / float(np.median(times[name]))
            results[name][f"{what}_ratio"] = 1 / ratio(times, name, FILES)
    return results


def main() -> None:
    """Print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="list of videos")
    parser.add_argument("--root", type=Path, help="folder of the videos, instead of the one in root.txt")
    parser.add_argument("--test-list", type=Path, help="list of the queries of kNN, with the classes of LIST")
    parser.add_argument("--checkpoint", default="vidssl-small", help="of the features (default vidssl-small)")
    parser.add_argument("--short-side", type=int, default=128, help="of the copies (default 128)")
    parser.add_argument("--size", type=int, default=112, help="of the crops of `strong` (default 112)")
    parser.add_argument("--rounds", type=int, default=300, help="clips of each reader (default 300)")
    parser.add_argument("--workers", type=int, default=2, help="processes that copy and decode (default 2)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parsed = parser.parse_args()
    one_thread()
    files = [parsed.list, *([parsed.test_list] if parsed.test_list else [])]
    originals = [read_list(path, parsed.root) for path in files]
    rows: dict[str, dict[str, Any]]
    with tempfile.TemporaryDirectory() as folder:
        folders = copied(files, parsed.root, Path(folder), parsed.short_side, parsed.workers)
        versions = {FILES: originals} | {
            name: [read_list(path, out) for path in files] for name, out in folders.items()
        }
        only = {name: lists[0] for name, lists in versions.items()}
        rows = dict(timed(only, folders[JPEG], parsed.size, parsed.rounds))
        network = load_subject(parsed.checkpoint, {"workers": parsed.workers}) if parsed.test_list else None
        wanted = [features(network, videos) for videos in originals] if network else []
        for name, lists in versions.items():
            rows[name]["bytes"] = stored(lists)
            rows[name]["psnr"] = psnr(originals[0], lists[0]) if name != FILES else None
            if network:
                found = wanted if name == FILES else [features(network, videos) for videos in lists]
                rows[name] |= compared(wanted, found)
    header = ["read from", "decoding, clips/s (times files)", "with `strong`", "kB a video", "PSNR, dB"]
    header += ["cosine, mean (lowest)", "kNN, %"] if parsed.test_list else []
    cells = []
    for name, row in rows.items():
        shown = [name, *(f"{row[what]:.0f} ({row[f'{what}_ratio']:.1f})" for what in ("decode", "sample"))]
        shown.append(f"{row['bytes'] / 1000:.0f}" if "bytes" in row else "")
        shown.append(f"{row['psnr']:.1f}" if row.get("psnr") else "")
        if parsed.test_list:
            shown.append(f"{row['cosine']:.4f} ({row['lowest']:.3f})" if "cosine" in row else "")
            shown.append(f"{100 * row['knn']:.1f}" if "knn" in row else "")
        cells.append(shown)
    print(table(header, cells))
    finish({"list": str(parsed.list), "videos": len(originals[0].records), "rows": rows}, parsed.json)


if __name__ == "__main__":
    guarded(main)
