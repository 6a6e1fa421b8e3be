r"""Measure a decoder of parts: pixel accuracy and mean IoU of a checkpoint of `part_segmentation` on a list with masks.

    python examples/part_segmentation/measure.py output/parts/data/parts/test.csv \
        --checkpoint output/parts/digits/checkpoints/last.pt --out output/parts/digits/measured

Writes `results.json`, `per_class.csv` and `parts.png`. Pixels of 255 are not counted. Two baselines that ignore the
image are reported, both fitted to the tested list: the most frequent part everywhere (`most_frequent`), and at each
position of the crop the part that is most frequent there (`layout`).
"""

import argparse
import csv
import io
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from part_maps import PartCrop, draw_parts
from part_segmentation import PartSegmentation, counted_pixels
from torch import Tensor
from typing_extensions import Unpack

from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.output_folder import claim, only_run_in
from vidssl.base.progress import Report, progress
from vidssl.cli import errors_in_options, guarded, print_result
from vidssl.cli.options_from_signatures import add_options, parse, read_signature
from vidssl.data.list_identity import identify
from vidssl.data.loader import eval_loader
from vidssl.data.to_device import to_device
from vidssl.data.video_list import VideoList, read_list
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.jobs.job import File, Model, NetworkOptions, file_of, job
from vidssl.jobs.load_network import Subject, device_of, load_method, load_subject
from vidssl.jobs.measurement_runner import JobResults
from vidssl.models.read_and_write_weights import read_anything

NUM_DRAWN = 10  # crops in parts.png
NUMBERS = ("pixel_accuracy", "layout", "most_frequent")


def main() -> None:
    """Measure and print a table: the options are the arguments of `segment_parts`."""
    signature = read_signature(__file__, "segment_parts")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, signature)
    parsed = parse(parser, signature, None)
    as_json = parsed.pop("json")

    def work() -> None:
        with errors_in_options(signature):
            print_result(segment_parts(**parsed), as_json)

    guarded(work)


@job
def segment_parts(
    model: Model, videos: File, *, out: File, progress: Report = None, **options: Unpack[NetworkOptions]
) -> JobResults:
    """Measure a decoder of parts on the center crop of each item of a list.

    Args:
        model: A checkpoint of `part_segmentation`.
        videos: List with masks.
        out: Folder for results.json, per_class.csv and parts.png.
        progress: Called with (batches done, all batches, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Returns:
        The content of `results.json`, on every process; only the main one writes.

    Raises:
        ConfigError: The checkpoint has no decoder of parts, or the list has no masks.
        DataError: The list, a crop or a mask cannot be read.
    """
    out, videos, file = Path(out), Path(videos), file_of(model)
    claim(out, "parts", inputs={"list": videos}, read=[file])
    if options.get("clips", 1) != 1 or options.get("crops", 1) != 1:
        raise ConfigError("parts are measured on one clip and its center crop: leave out clips and crops")
    with distributed.joined(device_of(model, options)):
        crops = read_list(videos, options.get("root"), options.get("allow_external", False))
        if crops.records[0].mask is None:  # either all rows have a mask, or none has
            raise ConfigError(f"{videos} has no column 'mask'")
        subject = load_subject(model, {**options, "clips": 1, "crops": 1})
        method = _load_decoder(subject, file, options.get("trust", False))
        with only_run_in(out):
            names = _part_names(videos, method.config.parts)
            data = distributed.on_main(lambda: identify(crops))
            request = subject.request(command="parts", list=crops.fingerprint, data=data, parts=names)
            distributed.on_main(lambda: existing_results(out, request, reuse=False))
            overlap = subject.count_overlap(crops)
            totals = _gather(method, subject, crops)
            results = _results(totals, crops, names, subject, videos)
            results = complete(results, request=request, overlap=overlap, query=crops.fingerprint)
            distributed.on_main(lambda: _write(out, results, totals, crops, names))
    measured = JobResults(results)
    measured.text, measured.file = table(results), out / "parts.png"
    return measured


def table(results: Results) -> str:
    """Format the numbers for a terminal."""
    lines = [
        f"{results['num_videos']} crops, {results['num_pixels']} pixels, percent",
        f"{'class':<14} {'pixel accuracy':>14} {'layout':>8} {'most frequent':>14}",
    ]
    mean = {name: results[f"{name}_mean_class"] for name in NUMBERS}
    rows = [(row["class"], row) for row in results["per_class"]]
    for title, row in [*rows, ("mean", mean), ("all pixels", results)]:
        accuracy, layout, frequent = (f"{100 * row[name]:.1f}" for name in NUMBERS)
        lines.append(f"{title[:14]:<14} {accuracy:>14} {layout:>8} {frequent:>14}")
    return "\n".join([*lines, f"mean IoU {100 * results['mean_iou']:.1f}"])


@dataclass
class Counts:
    """Pixel counts over crops."""

    confusion: Tensor  # (parts, parts) int64: pixels by true and predicted part
    positions: Tensor  # (parts, S, S) int64: crops by true part at each position
    crops: int = 0

    @classmethod
    def zeros(cls, parts: int, size: int) -> "Counts":
        """Counts over no crop."""
        confusion = torch.zeros(parts, parts, dtype=torch.int64)
        return cls(confusion, torch.zeros(parts, size, size, dtype=torch.int64))

    def add(self, truth: Tensor, predicted: Tensor, counted: Tensor) -> None:
        """Count one crop; all three are (S, S)."""
        parts = len(self.confusion)
        pairs = truth[counted] * parts + predicted[counted]
        self.confusion += torch.bincount(pairs, minlength=parts * parts).view(parts, parts)
        self.positions.scatter_add_(0, (truth * counted)[None], counted.long()[None])
        self.crops += 1

    def merge(self, counts: "Counts") -> None:
        """Add the counts of other crops."""
        self.confusion += counts.confusion
        self.positions += counts.positions
        self.crops += counts.crops

    def numbers(self) -> dict[str, float]:
        """The accuracy and the two baselines."""
        pixels = max(int(self.confusion.sum()), 1)
        return {
            "pixel_accuracy": int(self.confusion.trace()) / pixels,
            "layout": int(self.positions.amax(dim=0).sum()) / pixels,
            "most_frequent": int(self.confusion.sum(dim=1).max()) / pixels,
        }

    def iou(self) -> dict[int, float]:
        """Intersection over union of each part that occurs in the masks."""
        right, true, predicted = self.confusion.diagonal(), self.confusion.sum(dim=1), self.confusion.sum(dim=0)
        return {n: int(right[n]) / int(true[n] + predicted[n] - right[n]) for n in range(len(right)) if true[n]}


@dataclass
class ListCounts:
    """Counts, crops to draw and missing items of a list."""

    counts: dict[int, Counts] = field(default_factory=dict)  # by label
    # By index: image (S, S, 3) uint8, true and predicted parts (S, S).
    crops_to_draw: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)


def _load_decoder(subject: Subject, file: Path | None, trust: bool) -> PartSegmentation:
    run = subject.require_run("a decoder of parts")
    if file is None or run.method.name != "part_segmentation" or "step" not in subject.origin:
        raise ConfigError(
            f"{subject.name} has no decoder of parts (method: {run.method.name}); use a checkpoint of a "
            "part_segmentation run"
        )
    method = load_method(run, subject.backbone, read_anything(file, trust), subject.name)
    assert isinstance(method, PartSegmentation)
    return method.to(subject.device).eval()


def _gather(method: PartSegmentation, subject: Subject, crops: VideoList) -> ListCounts:
    """Count on all processes and merge."""
    outcomes = distributed.gather_outcomes(lambda: _count(method, subject, crops))
    merged = ListCounts(missing=sorted(pair for outcome in outcomes for pair in outcome.missing))
    for outcome in outcomes:
        for label, counts in outcome.counts.items():
            merged.counts.setdefault(label, Counts.zeros(*counts.positions.shape[:2])).merge(counts)
        merged.crops_to_draw.update(outcome.crops_to_draw)
    if not merged.counts:
        raise DataError(f"none of the {len(merged.missing)} crops can be read; first: {merged.missing[0][1]}")
    return merged


@torch.no_grad()
def _count(method: PartSegmentation, subject: Subject, crops: VideoList) -> ListCounts:
    """Count the crops of this process."""
    test, totals = subject.test, ListCounts()
    drawn_indices = _evenly_chosen([record.label for record in crops.records])
    loader = eval_loader(
        test.dataset(crops), test.batch_size, test.workers, distributed.rank(), distributed.world(), test.timeout
    )
    bar = {"title": "parts", "unit": "batch", "disable": not distributed.is_main(), "leave": False}
    with closing(iter(loader)) as batches:
        for raw in progress(batches, total=len(loader), **bar):
            totals.missing += raw.replaced
            if not len(raw.index):
                continue
            batch = to_device(raw, subject.device, test.mean, test.std)
            counted = counted_pixels(batch.mask, method.config.parts).cpu()
            with torch.autocast(subject.device.type, torch.bfloat16, enabled=test.precision == "bfloat16"):
                logits = method.segment(batch.views[0], test.size)
            predicted, truth = logits.argmax(dim=1).cpu(), batch.mask.cpu()
            for n, (label, index) in enumerate(zip(raw.label.tolist(), raw.index.tolist(), strict=True)):
                counts = totals.counts.setdefault(label, Counts.zeros(method.config.parts, test.size))
                counts.add(truth[n], predicted[n], counted[n])
                if index in drawn_indices:
                    clip = raw.views[0][n]  # (T, C, S, S)
                    image = clip[len(clip) // 2].permute(1, 2, 0).clone()
                    totals.crops_to_draw[index] = image, truth[n], predicted[n]
    return totals


def _evenly_chosen(labels: Sequence[int]) -> set[int]:
    """Indices of the crops to draw: equally many of each class, evenly spaced in the list."""
    classes = sorted(set(labels))[:NUM_DRAWN]
    rows = [[n for n, row_label in enumerate(labels) if row_label == label] for label in classes]
    per_class = NUM_DRAWN // len(classes)
    return {class_rows[int(n)] for class_rows in rows for n in np.linspace(0, len(class_rows) - 1, per_class).round()}


def _part_names(videos: Path, parts: int) -> list[str]:
    """Read `parts.txt` beside the list, if there is one: line n names part n."""
    beside = videos.parent / "parts.txt"
    if not beside.exists():
        return [f"part {n}" for n in range(parts)]
    names = beside.read_text(encoding="utf-8").rstrip().split("\n")
    if len(names) != parts:
        raise DataError(f"{beside} names {len(names)} parts, the decoder has {parts}")
    return names


def _results(totals: ListCounts, crops: VideoList, names: Sequence[str], subject: Subject, videos: Path) -> Results:
    overall = Counts.zeros(len(names), subject.test.size)
    per_class: list[dict[str, Any]] = []
    for label, counts in sorted(totals.counts.items()):
        overall.merge(counts)
        pixels = int(counts.confusion.sum())
        row = {"class": crops.class_name(label), "crops": counts.crops, "pixels": pixels}
        per_class.append({**row, **counts.numbers()})
    pixels_of_part = overall.confusion.sum(dim=1).tolist()
    iou = overall.iou()
    counted = [row for row in per_class if row["pixels"]]
    if not counted:
        raise DataError(f"all pixels of the masks of {videos} are 255: nothing to count")
    return {
        **overall.numbers(),
        **{f"{name}_mean_class": sum(row[name] for row in counted) / len(counted) for name in NUMBERS},
        "mean_iou": sum(iou.values()) / len(iou),
        "per_class": per_class,
        "iou_per_part": {names[n]: value for n, value in iou.items()},
        "per_part": {
            name: int(overall.confusion[n, n]) / pixels_of_part[n] for n, name in enumerate(names) if pixels_of_part[n]
        },
        "num_videos": overall.crops,
        "num_pixels": sum(pixels_of_part),
        "missing": [{"path": path, "reason": reason} for path, reason in totals.missing],
        "list": str(videos),
        **subject.describe(),
    }


def _write(out: Path, results: Results, totals: ListCounts, crops: VideoList, names: Sequence[str]) -> None:
    (out / "results.json").unlink(missing_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, ["class", "crops", "pixels", *NUMBERS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(results["per_class"])
    write_whole(out / "per_class.csv", text.getvalue().encode())
    crops_to_draw = [
        PartCrop(*(tensor.numpy() for tensor in crop), crops.class_name(crops.records[index].label))
        for index, crop in sorted(totals.crops_to_draw.items())
    ]
    if crops_to_draw:
        write_whole(out / "parts.png", draw_parts(crops_to_draw, names))
    write_results(out, results)  # written last: marks a complete measurement


if __name__ == "__main__":
    main()
