r"""What `vidssl map` finds of planted near copies among clips of one room and one face.

    python benchmarks/near_copies.py DATA --out output/near_copies vidssl-small floor:thumbnails

DATA has the folders `ucf101_6`, `utd_mhad_rgb` and `more/grid_s1`. 100 clips of UCF101, by seed and of different groups
where there are enough, get a copy each: 25 of strong compression, of 0.6 of the size, without the first half
second, with 5 % cut off at each side. The others are 160 clips of one room and 40 of one face. A pair that is not a
clip and its copy counts as wrong, also two takes of one person. Clips and people are divided in halves: thresholds may
be chosen on the first, the second is reported, and both in one folder. With `--more` there are 100 copies of twelve
further kinds, with `--several` 100 of four kinds of several changes at once.
"""

import argparse
import re
import shutil
import time
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
from measure import finish, one_thread, table

import vidssl
from vidssl.base.keyed_generators import generator
from vidssl.data.find_same_videos import own_rows, recording_group
from vidssl.evaluation.near_copies import find_near_copies
from vidssl.video.write import encode

KINDS = ("CRF 33", "0.6 of the size", "first 0.5 s cut off", "5 % cut off at each side")
MORE = (
    "half the frame rate",
    "brighter",
    "darker",
    "WebM",
    "logo",
    "letterbox",
    "5 % cut off at one side",
    "10 % cut off at each side",
    "first half only",
    "both ends 1 s cut off",
    "mirrored",
    "1.25 times as fast",
)
SEVERAL = (
    "0.7 of the size, CRF 31, first 0.3 s cut off",
    "5 % cut off at each side, CRF 30, half the frame rate",
    "brighter, 0.6 of the size, last 0.5 s cut off",
    "0.8 of the size, CRF 33, both ends 1 s cut off",
)


def even(images):
    """Cut images (T, H, W, 3) to even sides."""
    return np.ascontiguousarray(images[:, : images.shape[1] // 2 * 2, : images.shape[2] // 2 * 2])


def cut(images, share, top_left=False):
    """Cut a share of the height and width off at each side, or only at the top and the left."""
    height, width = (round(share * side) for side in images.shape[1:3])
    if top_left:
        return images[:, height:, width:]
    return images[:, height : images.shape[1] - height, width : images.shape[2] - width]


def with_logo(images):
    """Draw a bright square of a fifth of the height in a corner."""
    images, side = images.copy(), images.shape[1] // 5
    images[:, 4 : 4 + side, 4 : 4 + side] = (250, 220, 40)
    return images


def letterboxed(images):
    """Add black bars of an eighth of the height above and below."""
    bar = images.shape[1] // 8
    return np.pad(images, ((0, 0), (bar, bar), (0, 0), (0, 0)))


def changed(images, per_second, change):
    """Change images (T, H, W, 3) in one way; what only the encoder does leaves them."""
    if seconds := re.fullmatch(r"(first|last|both ends) ([\d.]+) s cut off", change):
        count = round(float(seconds[2]) * per_second)
        if seconds[1] == "both ends" and len(images) < 3 * per_second * float(seconds[2]):
            return images
        start, stop = (0 if seconds[1] == "last" else count), (0 if seconds[1] == "first" else count)
        return images[start : len(images) - stop]
    if change.endswith("of the size"):
        scale = float(change.split()[0])
        return np.stack([cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) for image in images])
    if change.endswith("cut off at each side"):
        return cut(images, float(change.split()[0]) / 100)
    if change in ("brighter", "darker"):
        return (255 * (images / 255) ** (0.6 if change == "brighter" else 1.6)).astype(np.uint8)
    other = {
        "5 % cut off at one side": lambda: cut(images, 0.05, top_left=True),
        "half the frame rate": lambda: images[::2],
        "logo": lambda: with_logo(images),
        "letterbox": lambda: letterboxed(images),
        "first half only": lambda: images[: len(images) // 2],
        "mirrored": lambda: images[:, :, ::-1],
    }
    return other[change]() if change in other else images


def write_copy(source, target, kind):
    """Write a copy of a video of one kind, whose changes are separated by commas; returns the path."""
    with vidssl.open_video(source) as video:
        images, fps = video.frames(range(len(video))).transpose(0, 2, 3, 1), video.meta.fps
    changes = kind.split(", ")
    for change in changes:
        images = changed(images, round(fps), change)
    rate, codec = Fraction(fps).limit_denominator(1001), "libx264"
    rate = rate / 2 if "half the frame rate" in changes else rate
    rate = rate * Fraction(5, 4) if "1.25 times as fast" in changes else rate
    crf = next((change.removeprefix("CRF ") for change in changes if change.startswith("CRF")), "23")
    if "WebM" in changes:
        target, codec = target.with_suffix(".webm"), "libvpx"
    options = {"crf": crf, "b": "400k"} if codec == "libvpx" else {"crf": crf, "preset": "veryfast"}
    encode(target, even(images), rate, codec=codec, options=options)
    return target


def draw(data, out, kinds, seed):
    """Copy the clips into `out`, and write the copies, named by their source and kind."""
    order = generator(seed, 1)
    videos = sorted((data / "ucf101_6").rglob("*.mp4"))
    shuffled = [videos[n] for n in order.permutation(len(videos))]
    sources, groups = [], set()
    for video in shuffled:  # of different groups first
        if (group := recording_group(video.name)) not in groups:
            groups.add(group)
            sources.append(video)
    sources = [*sources, *(video for video in shuffled if video not in {*sources})][:100]
    faces = sorted((data / "more/grid_s1").rglob("*.mp4"))
    faces = [faces[n] for n in order.permutation(len(faces))[:40]]
    people = [[*(data / "utd_mhad_rgb").glob(f"*_s[{persons}]_*.mp4")] for persons in ("1-4", "5-8")]
    for half in (0, 1):
        (out / str(half)).mkdir(parents=True)
        for n, source in enumerate(sources[half::2]):
            shutil.copy(source, out / str(half) / source.name)
            write_copy(source, out / str(half) / f"{source.stem}__{n % len(kinds)}.mp4", kinds[n % len(kinds)])
        for video in sorted(people[half]) + faces[half::2]:
            shutil.copy(video, out / str(half) / f"{video.parent.name}_{video.name}")
        shutil.copytree(out / str(half), out / "all", dirs_exist_ok=True)


def measure(videos, encoders, kinds):
    """Find the near copies of a folder; return recall by kind, precision, the pairs, and seconds without features."""
    clips = vidssl.read_input(videos)
    features = [
        vidssl.extract(name, clips, out=videos.parent / "features" / f"{videos.name}_{name.replace(':', '_')}").x
        for name in encoders
    ]
    start = time.perf_counter()
    pairs, _ = find_near_copies(clips, features, own_rows(clips, clips))
    seconds = time.perf_counter() - start
    stem = [Path(name).stem for name in clips.names]
    hits, wrong = dict.fromkeys(kinds, 0), []
    for *rows, similarity in pairs:
        a, b = sorted(rows, key=lambda row: len(stem[row]))
        if stem[b].startswith(f"{stem[a]}__"):
            hits[kinds[int(stem[b].rpartition("__")[2])]] += 1
        else:
            wrong.append((stem[a], stem[b], similarity))
    count = {kind: sum(name.endswith(f"__{n}") for name in stem) for n, kind in enumerate(kinds)}
    return {
        "precision": 1 - len(wrong) / max(1, len(pairs)),
        "recall": sum(hits.values()) / sum(count.values()),
        **{kind: hits[kind] / count[kind] for kind in kinds},
        "seconds": seconds,
        "wrong": wrong,
    }


def main() -> None:
    """Draw the videos, if they are not there, and print the tables of both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("encoders", nargs="+", metavar="NAME", help="features that propose candidates, one at a time")
    parser.add_argument("--more", action="store_true", help="twelve further kinds")
    parser.add_argument("--several", action="store_true", help="four kinds of several changes at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for videos, features and figures.json")
    parsed = parser.parse_args()
    one_thread()
    kinds, folder = (MORE, "more") if parsed.more else (SEVERAL, "several") if parsed.several else (KINDS, "main")
    out = parsed.out / folder
    if not out.exists():
        draw(parsed.data, out, kinds, parsed.seed)
    titles = {"0": "first half, for choices", "1": "second half", "all": "all"}
    numbers = {
        f"{name}, {title}": measure(out / folder, [name], kinds)
        for folder, title in titles.items()
        for name in parsed.encoders
    }
    columns = ["precision", "recall", *kinds, "seconds"]
    print(table(["", *columns], [[name, *(f"{row[key]:.2f}" for key in columns)] for name, row in numbers.items()]))
    for name, row in numbers.items():
        print(f"{name}: wrong {row['wrong']}")
    finish(numbers, out / "figures.json")


if __name__ == "__main__":
    main()
