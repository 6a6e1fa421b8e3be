"""Measure a decoder of parts: how many pixels of object crops get the right part."""

import csv
import io
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vidssl import distributed
from vidssl.atomic import check_folder, write_json, write_whole
from vidssl.commands.load import LoadOptions as Options
from vidssl.commands.load import Subject, load_method, load_subject
from vidssl.data.loader import Loader, eval_loader, to_device
from vidssl.data.video_list import VideoList, read_list, read_text
from vidssl.engine.resume import only_run_in
from vidssl.engine.run_config import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.methods.part_segmentation import PartSegmentation, counted_pixels
from vidssl.models.weights import read_anything
from vidssl.progress import progress
from vidssl.viz import PartCrop, parts_picture

Results = dict[str, Any]
SHOWN = 10  # crops in the picture


def segment_parts(options: Options, videos: Path, out: Path) -> Results:
    """Measure the pixel accuracy of a run of `part_segmentation`; write `results.json`, `per_class.csv`, `parts.png`.

    Pixels of 255 are not counted. Two floors stand beside the accuracy, both of the tested list itself: always the
    most frequent part (`most_frequent`), and at each place of the crop the part that is most frequent there
    (`layout`), which is the most that a decoder reaches that does not look.

    Args:
        options: Which network; one clip and its centre are looked at.
        videos: The list, with a column `mask`.
        out: Folder for the results, made where it is missing.

    Returns:
        What is in `results.json`, on every process; the main one alone writes.

    Raises:
        ConfigError: The checkpoint has no decoder of parts, or the list no masks.
        DataError: A list, a crop or a mask cannot be used.
    """
    check_folder(out)
    if options.clips not in (None, 1) or options.crops not in (None, 1):
        raise ConfigError("parts are looked at in one clip and its centre: leave --clips and --crops out")
    with distributed.joined(choose_device(options.device)):
        crops = read_list(videos, options.root, options.allow_external)
        if crops.records[0].mask is None:  # a list has the column or has it not
            raise ConfigError(f"{videos} has no column 'mask': parts are measured against masks")
        subject = load_subject(options)
        subject = replace(subject, test=subject.test.model_copy(update={"clips": 1, "crops": 1}))
        method = _decoder(subject, options)
        with only_run_in(out):
            names = _part_names(videos, method.config.parts)
            found = _measure(method, subject, crops)
            results = _results(found, crops, names, subject, videos)
            distributed.on_main(lambda: _write(out, results, found, crops, names))
    return results


def table(results: Results) -> str:
    """Write the numbers as a short table for a terminal."""
    lines = [
        f"{results['num_videos']} crops, {results['num_pixels']} pixels, percent",
        f"{'class':<14} {'pixels right':>12} {'layout':>12} {'most frequent':>14}",
    ]
    rows = [(row["class"], row) for row in results["per_class"]]
    mean = {name: results[f"{name}_mean_class"] for name in _NUMBERS}
    for title, row in [*rows, ("mean", mean), ("all pixels", results)]:
        accuracy, layout, frequent = (f"{100 * row[name]:.1f}" for name in _NUMBERS)
        lines.append(f"{title[:14]:<14} {accuracy:>12} {layout:>12} {frequent:>14}")
    return "\n".join(lines)


_NUMBERS = ("pixel_accuracy", "layout", "most_frequent")


@dataclass
class _Counts:
    """What was seen of the crops of one class."""

    confusion: Tensor  # (parts, parts) int64: pixels by true and predicted part
    places: Tensor  # (parts, S, S) int64: crops by true part and place
    crops: int = 0

    @classmethod
    def none(cls, parts: int, size: int) -> "_Counts":
        """Of no crop."""
        places = torch.zeros(parts, size, size, dtype=torch.int64)
        return cls(torch.zeros(parts, parts, dtype=torch.int64), places)

    def add(self, truth: Tensor, predicted: Tensor, counted: Tensor) -> None:
        """Count a crop: three times (S, S)."""
        parts = len(self.confusion)
        pairs = truth[counted] * parts + predicted[counted]
        self.confusion += torch.bincount(pairs, minlength=parts * parts).view(parts, parts)
        self.places.scatter_add_(0, (truth * counted)[None], counted.long()[None])
        self.crops += 1

    def take(self, other: "_Counts") -> None:
        """Add what was seen of other crops."""
        self.confusion += other.confusion
        self.places += other.places
        self.crops += other.crops

    def numbers(self) -> dict[str, float]:
        """The accuracy and its two floors."""
        pixels = max(int(self.confusion.sum()), 1)
        return {
            "pixel_accuracy": int(self.confusion.trace()) / pixels,
            "layout": int(self.places.amax(dim=0).sum()) / pixels,
            "most_frequent": int(self.confusion.sum(dim=1).max()) / pixels,
        }


@dataclass
class _Found:
    """What was seen of a list."""

    counts: dict[int, _Counts]  # by label
    shown: dict[int, tuple[Tensor, Tensor, Tensor]]  # by index: image (S, S, 3) uint8, truth, predicted
    missing: list[tuple[str, str]]


def _decoder(subject: Subject, options: Options) -> PartSegmentation:
    """Build the method around the backbone, with the weights of its decoder."""
    name = subject.run.method.name
    if name != "part_segmentation" or "step" not in subject.origin:
        raise ConfigError(
            f"--checkpoint {options.checkpoint} has no decoder of parts ({name}): give the checkpoint of a run of "
            "part_segmentation, configs/parts/"
        )
    content = read_anything(Path(options.checkpoint), options.trust_checkpoint)
    method = load_method(subject.run, subject.backbone, content, options.checkpoint)
    assert isinstance(method, PartSegmentation)  # by its name
    return method.to(subject.device).eval()


@torch.no_grad()
def _measure(method: PartSegmentation, subject: Subject, crops: VideoList) -> _Found:
    test, chosen = subject.test, set(_chosen([record.label for record in crops.records]))
    loader = eval_loader(
        test.dataset(crops),
        test.batch_size,
        test.workers,
        distributed.rank(),
        distributed.world(),
        test.timeout,
        test.prefetch,
    )
    every = distributed.gather_outcomes(lambda: _look(method, subject, loader, chosen))
    counts: dict[int, _Counts] = {}
    for found in every:
        for label, own in found.counts.items():
            counts.setdefault(label, _Counts.none(*own.places.shape[:2])).take(own)
    missing = sorted(pair for found in every for pair in found.missing)
    if not counts:
        raise DataError(
            f"none of the {len(missing)} crops of {crops.path} can be read; the first: {missing[0][1]}"
        )
    shown = {index: crop for found in every for index, crop in found.shown.items()}
    return _Found(dict(sorted(counts.items())), dict(sorted(shown.items())), missing)


def _look(method: PartSegmentation, subject: Subject, loader: Loader, chosen: set[int]) -> _Found:
    """Count this process's share of the crops."""
    found, parts, size = _Found({}, {}, []), method.config.parts, subject.test.size
    with closing(iter(loader)) as batches:
        bar = progress(
            batches,
            total=len(loader),
            title="parts",
            unit="batch",
            disable=not distributed.is_main(),
            leave=False,
        )
        for raw in bar:
            found.missing += raw.replaced
            if not len(raw.index):
                continue
            batch = to_device(raw, subject.device, subject.test.mean, subject.test.std)
            assert batch.mask is not None  # the list has them
            counted = counted_pixels(batch.mask, parts).cpu()
            half = subject.test.precision == "bfloat16"
            with torch.autocast(subject.device.type, torch.bfloat16, enabled=half):
                logits = method.segment(batch.views[0], size)
            predicted, truth = logits.argmax(dim=1).cpu(), batch.mask.cpu()
            for n, (label, index) in enumerate(zip(raw.label.tolist(), raw.index.tolist(), strict=True)):
                if label not in found.counts:
                    found.counts[label] = _Counts.none(parts, size)
                found.counts[label].add(truth[n], predicted[n], counted[n])
                if index in chosen:
                    image = raw.views[0][n, len(raw.views[0][n]) // 2].permute(1, 2, 0).clone()
                    found.shown[index] = image, truth[n], predicted[n]
    return found


def _chosen(labels: Sequence[int]) -> list[int]:
    """Numbers of the crops that are shown: evenly from all classes, and within each from all of the list."""
    classes = sorted(set(labels))[:SHOWN]
    rows = {label: [n for n, other in enumerate(labels) if other == label] for label in classes}
    each = SHOWN // len(classes)
    return [
        own[int(n)] for own in rows.values() for n in np.unique(np.linspace(0, len(own) - 1, each).round())
    ]


def _part_names(videos: Path, parts: int) -> list[str]:
    """Read `parts.txt` beside the list, where there is one: line n names part n."""
    beside = videos.parent / "parts.txt"
    if not beside.exists():
        return [f"part {n}" for n in range(parts)]
    names = read_text(beside, "delete it").rstrip().split("\n")
    if len(names) != parts:
        raise DataError(f"{beside} names {len(names)} parts, the decoder knows {parts}: is it of this list?")
    return names


def _results(
    found: _Found, crops: VideoList, names: Sequence[str], subject: Subject, videos: Path
) -> Results:
    per_class: list[dict[str, Any]] = [
        {
            "class": crops.class_name(label),
            "crops": own.crops,
            "pixels": int(own.confusion.sum()),
            **own.numbers(),
        }
        for label, own in found.counts.items()
    ]
    whole = _Counts.none(len(names), subject.test.size)
    for own in found.counts.values():
        whole.take(own)
    pixels = whole.confusion.sum(dim=1)
    seen = [row for row in per_class if row["pixels"]]
    if not seen:
        raise DataError(f"no pixel of the masks of {videos} is counted: all are 255")
    return {
        **whole.numbers(),
        **{f"{name}_mean_class": sum(row[name] for row in seen) / len(seen) for name in _NUMBERS},
        "per_class": per_class,
        "per_part": {
            name: int(whole.confusion[n, n]) / int(pixels[n]) for n, name in enumerate(names) if pixels[n]
        },
        "num_videos": whole.crops,
        "num_pixels": int(pixels.sum()),
        "missing": [{"path": path, "reason": reason} for path, reason in found.missing],
        "list": str(videos),
        **subject.describe(),
    }


def _write(out: Path, results: Results, found: _Found, crops: VideoList, names: Sequence[str]) -> None:
    (out / "results.json").unlink(missing_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["class", "crops", "pixels", *_NUMBERS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results["per_class"])
    write_whole(out / "per_class.csv", text.getvalue().encode())
    pictures = [
        PartCrop(
            image.numpy(), truth.numpy(), predicted.numpy(), crops.class_name(crops.records[index].label)
        )
        for index, (image, truth, predicted) in found.shown.items()
    ]
    if pictures:
        write_whole(out / "parts.png", parts_picture(pictures, names))
    write_json(out / "results.json", results)  # last: what is there is complete
