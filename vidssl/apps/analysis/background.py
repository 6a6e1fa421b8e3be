"""Accuracy on videos whose instance, by its box or mask, is shown in front of the background of another video.

Each clip has three versions: as it is, with the background of another video of its class, and of one of another class.
The first swap alone changes what compositing changes, such as edges; the second one also what backgrounds reveal.

Shapes: N videos, T frames of H x W pixels, B videos of a batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.analysis import verdicts
from vidssl.apps.analysis.evidence import Evidence
from vidssl.apps.analysis.page import measure_sections
from vidssl.apps.analysis.versions import encode_versions, why_no_classifier
from vidssl.base import distributed
from vidssl.base.atomic import file_hash, write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import Report
from vidssl.base.types import Features, Frames, VideoRecord
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.dataset import ClipDataset, resolve_span
from vidssl.data.list_identity import identify
from vidssl.data.read_instance_boxes import InstanceBoxes, pixels_of, read_instance_boxes
from vidssl.data.video_list import Records, VideoList
from vidssl.evaluation.measure import check_classes, check_measurable
from vidssl.evaluation.metrics import majority, vote
from vidssl.evaluation.protocols import KNN
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.search import nearest
from vidssl.evaluation.train_test_overlap import check_disjoint
from vidssl.jobs.grad_cam import UniformVersions, VersionRequest, with_versions
from vidssl.jobs.job import File, Model, Natural, NetworkOptions, Videos, job
from vidssl.jobs.load_network import Subject, one_network
from vidssl.jobs.measurement_runner import JobResults, Measurement, list_missing
from vidssl.page.charts import Shot, example_sheet
from vidssl.page.figure_style import png
from vidssl.page.section import Section
from vidssl.transforms.crops import Box, crop_resize
from vidssl.transforms.invariance_changes import GRAY
from vidssl.video.reader import DecodeSettings, open_video

BACKGROUND_SECTION = Section(
    "background",
    "Background",
    "Does the network recognise the place instead of the action? The instance of each tested video is put in front of "
    "the background of another video, of the same class and of another class.",
)
_EXAMPLES = 6


@job
def analyze_background(
    model: Model | Sequence[Model],
    videos: Videos,
    *,
    out: File | None = None,
    train_list: Videos | None = None,
    masks: File | None = None,
    boxes: File | None = None,
    seed: Natural = 0,
    splits: Sequence[int] | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Measure the accuracy of networks on videos whose instance is put in front of the background of other videos.

    Args:
        model: One network or several, as in `test`.
        videos: The tested videos, with labels.
        out: Folder for results.json, index.html and examples.png.
        train_list: Training videos, for kNN and R@1; optional if the network has a classifier.
        masks: Folder with the masks of each video: a video or a folder of images with its path in the list.
        boxes: CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame; this or masks.
        seed: Of the choice of the backgrounds.
        splits: Measure once per split, as 1 2 3; the number replaces `{split}` in paths and settings.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        The results of each network, by its name.
    """
    mask_folder, box_file = (None if path is None else Path(path) for path in (masks, boxes))
    work = Background(mask_folder, box_file, seed)
    return measure_sections(work, model, videos, options, out, background_section, train_list, splits)


@dataclass
class Background(Measurement):
    """Where the instances are, masks or boxes, and the seed of the choice of backgrounds."""

    kind: ClassVar[str] = "background"
    command: ClassVar[str] = "analyze background"
    masks: Path | None = None
    boxes: Path | None = None
    seed: int = 0

    def check(self) -> Tree:
        """Find the instances, and draw the backgrounds."""
        query, test = self.query, one_network(self.subject).test
        self.classifies = _check(self.subject, query, self.train)
        where, masks = _find_instances(self, query)
        self.backgrounds = draw_backgrounds(query, self.seed)
        records = list(query.records)
        pairs = ([records[n] for n in pair] for pair in self.backgrounds.tolist())
        swaps = Swaps(where, dict(zip(records, pairs, strict=True)))
        self.dataset = swaps.dataset(test.dataset(query), test.clip, test.clips)
        return {
            "boxes": None if self.boxes is None else file_hash(self.boxes),
            "masks": None if masks is None else distributed.on_main(lambda: identify(masks)),
            "seed": self.seed,
        }

    def measure(self) -> Results:
        """Classify the versions of all videos."""
        query, test, classify = self.query, self.subject.test, self.subject.classify if self.classifies else None
        arrange = partial(mean_of_versions, crops=test.crops)
        network = replace(self.subject, classify=classify)
        index, x, missing = encode_versions(network, self.dataset, test, arrange, network.name)
        g = None if self.train is None else network.extract(self.train, "gallery")
        if not distributed.is_main():
            return {}
        predicted = _predict(network, x, g)
        label, background = query.labels[index], query.labels[self.backgrounds[index, 1]]
        numbers: dict[str, float] = {}
        for name, classes in predicted.items():
            numbers |= swap_numbers(name, classes, label, background)
        results: Results = {
            **numbers,
            "majority": majority(torch.from_numpy(label))["majority"],
            "num_videos": len(index),
            "missing": list_missing(missing),
            "instances": {"boxes" if self.masks is None else "masks": str(self.masks or self.boxes)},
            "seed": self.seed,
        }
        if self.per_video:
            results["per_video"] = {"rows": index.tolist()}
            for name, classes in predicted.items():
                for n, end in enumerate(("", "_same", "_other")):
                    results["per_video"][f"{name}{end}"] = (classes[:, n] == label).astype(float).tolist()
        self.shown = index, next(iter(predicted.values()))
        return results

    def write(self, out: Path) -> None:
        """Draw the first videos in all versions, with the classes of their backgrounds; green: classified right."""
        (index, predicted), crops, videos, rows = self.shown, self.subject.test.crops, self.query, []
        step = max(1, len(index) // _EXAMPLES)
        for n in range(0, len(index), step)[:_EXAMPLES]:
            row = int(index[n])
            views = self.dataset[0, row].views
            middle = len(views) // (len(VERSIONS) * crops) // 2 * len(VERSIONS) * crops  # first view of the middle clip
            label = int(videos.labels[row])
            captions = [videos.class_name(label)]
            captions += [f"on {videos.class_name(int(videos.labels[source]))}" for source in self.backgrounds[row]]
            shots = []
            for version, caption in enumerate(captions):
                view = views[middle + version * crops + crops // 2]
                shots.append(Shot(view, caption, bool(predicted[n, version] == label)))
            rows.append(("", shots))
        sheet = example_sheet(rows, ("original", "same class", "another class"), (1.45, 1.6))
        write_whole(out / "examples.png", png(sheet))


def _check(subject: Subject, videos: VideoList, gallery: VideoList | None) -> bool:
    """Check that the lists fit each other; return whether the network's classifier has their classes."""
    check_measurable({"knn": KNN(KNN.Config())}, videos if gallery is None else gallery, videos, 0, subject.test.cells)
    if gallery is not None:
        check_classes(gallery, videos)
        check_disjoint(gallery, videos, "the search")
    refused = why_no_classifier(subject, videos)
    if refused is not None and gallery is None:
        raise refused
    return refused is None


def _find_instances(instances: Background, videos: VideoList) -> tuple[dict[str, Any], VideoList | None]:
    """Return boxes, or the path of masks, by the path of each record; and the list of masks."""
    paths = [record.path for record in videos.records]
    if instances.masks is not None:
        masks = list_masks(instances.masks, videos)
        return dict(zip(paths, (mask.path for mask in masks.records), strict=True)), masks
    if instances.boxes is None:
        raise ConfigError("backgrounds are swapped by masks or boxes: give masks=FOLDER or boxes=FILE")
    boxes = read_instance_boxes(instances.boxes, videos)
    without = [name for name, path in zip(videos.names, paths, strict=True) if path not in boxes]
    if without:
        counts = f"{len(without)} of {len(paths)} videos of {videos.path}, the first {without[0]}"
        raise DataError(f"{instances.boxes} has no box for {counts}: add boxes, or leave these videos out of the list")
    return dict(boxes), None


def _predict(subject: Subject, x: Tensor, g: Features | None) -> dict[str, np.ndarray]:
    """Predict the classes (N, 3) of all versions by the classifier, the vote of ten neighbours, and the nearest one."""
    dim, predicted = subject.encoder.dim, {}
    if subject.classify is not None:
        predicted["top1"] = x[:, :, dim:].argmax(dim=2)
    if g is not None:
        neighbours = nearest(x[:, :, :dim].flatten(0, 1), g.x, KNN.Config().k)
        for name, k in (("knn", KNN.Config().k), ("R@1", 1)):
            predicted[name] = vote(neighbours, g, k, KNN.Config().temperature).view(len(x), len(VERSIONS))
    return {name: classes.numpy() for name, classes in predicted.items()}


def swap_numbers(name: str, predicted: np.ndarray, label: np.ndarray, background: np.ndarray) -> dict[str, float]:
    """Compute fractions of predicted classes (N, 3): versions original, same, other.

    `NAME`, `NAME_same` and `NAME_other` are accuracies, `NAME_gap` is `NAME_same - NAME_other` (the background gap of
    Xiao et al., 2021). `NAME_shortcut` are videos classified as the class of their other background (N,),
    `NAME_shortcut_original` those that were classified so before the swap.
    """
    right = (predicted == label[:, None]).mean(axis=0).tolist()
    numbers = {f"{name}{suffix}": value for suffix, value in zip(("", "_same", "_other"), right, strict=True)}
    as_background = (predicted == background[:, None]).mean(axis=0).tolist()
    numbers |= {f"{name}_gap": right[1] - right[2], f"{name}_shortcut": as_background[2]}
    return {**numbers, f"{name}_shortcut_original": as_background[0]}


def background_section(evidence: Evidence) -> Section:
    """Whether the background decides."""
    versions = {"original": "", "same class": "_same", "another class": "_other"}
    more = {"background gap": "_gap", "shortcut": "_shortcut", "shortcut before the swap": "_shortcut_original"}
    quantities = []
    for measure, title in evidence.measures.items():
        keys = {name: f"{measure}{end}" for name, end in versions.items()}
        quantities.append(evidence.quantity(f"{title} by background", keys, evidence.levels))
        keys = {name: f"{measure}{end}" for name, end in more.items()}
        quantities.append(evidence.quantity(f"{title}, differences", keys, drawn=False))
    key = evidence.primary
    if key is None:
        return evidence.section(BACKGROUND_SECTION, quantities)
    same, another = evidence.estimate(f"{key}_same"), evidence.estimate(f"{key}_other")
    assert same is not None and another is not None
    gap, untrained = evidence.gap(f"{key}_same", f"{key}_other"), evidence.beside(f"{key}_same", f"{key}_other")
    verdict = verdicts.background(evidence.sample, evidence.score(f"{key}_same"), same, another, gap, untrained)
    return evidence.section(BACKGROUND_SECTION, quantities, verdict)


VERSIONS = ("original", "same", "other")
# Of the sides of a box: what is filled around an instance, since its edge and shadow are often outside.
BOX_MARGIN = 0.1
_INSIDE = 128  # pixels of a mask from this value on, in any channel, belong to the instance

_Pixels = NDArray[np.uint8]  # (T, H, W, 3) or (H, W, 3)
Masks = NDArray[np.bool_]  # (T, H, W): whether a pixel belongs to the instance


def list_masks(folder: Path, videos: VideoList) -> VideoList:
    """Find the masks of each video: the file or folder of images with its path below `folder`, suffix or not.

    Row n of the returned list has the masks of row n.

    Raises:
        DataError: A video has no masks, or a path that leaves its root.
    """
    records = Records(folder)
    for name in videos.names:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{videos.path}: {name} leaves the root: masks have the paths of the list; use boxes=FILE")
        matches = [candidate for candidate in (path, path.with_suffix("")) if (folder / candidate).exists()]
        if not matches:
            paths = f"neither {folder / path} nor the folder {path.with_suffix('')} exists"
            raise DataError(f"{name} of {videos.path} has no masks: {paths}; masks=FOLDER has the paths of the list")
        records.append(VideoRecord(str(matches[0])))
    return VideoList(folder, records, ())


def draw_backgrounds(videos: VideoList, seed: int) -> NDArray[np.int64]:
    """Draw for each video the rows (N, 2) of its backgrounds: another file of its class, and one of another class.

    All rows that fit are equally likely, by a generator of (seed, row).

    Raises:
        DataError: A video has no other file of its class, or there is one class only.
    """
    labels = videos.labels
    _, files = np.unique([record.path for record in videos.records], return_inverse=True)
    backgrounds = np.empty((len(labels), 2), np.int64)
    for n, label in enumerate(labels.tolist()):
        rng = generator(seed, n)
        for column, fits in enumerate((labels == label, labels != label)):
            rows = np.flatnonzero(fits & (files != files[n]))
            if not len(rows):
                kind = "its class" if column == 0 else "another class"
                needed = f"the background of another video of {kind} ({videos.class_name(label)}), and there is none"
                raise DataError(f"{videos.names[n]} of {videos.path} needs {needed}: add videos, or remove it")
            backgrounds[n, column] = rng.choice(rows)
    return backgrounds


def fill_box(frame: _Pixels, box: tuple[int, int, int, int]) -> None:
    """Fill a box xyxy of a frame (H, W, 3), in place, from the pixels around it.

    Each pixel is the mean of the nearest pixels left, right, above and below the box, weighted by their inverse
    distances; sides beyond the frame are left out. A box that covers the frame becomes gray.
    """
    height, width = frame.shape[:2]
    x1, y1, x2, y2 = box
    rows, columns = np.arange(y1, y2)[:, None, None], np.arange(x1, x2)[None, :, None]
    total, weights = np.zeros((y2 - y1, x2 - x1, 3)), np.zeros((y2 - y1, x2 - x1, 1))
    sides = (
        (x1 > 0, frame[y1:y2, x1 - 1][:, None], columns - x1 + 1),
        (x2 < width, frame[y1:y2, min(x2, width - 1)][:, None], x2 - columns),
        (y1 > 0, frame[y1 - 1, x1:x2][None], rows - y1 + 1),
        (y2 < height, frame[min(y2, height - 1), x1:x2][None], y2 - rows),
    )
    for inside, pixels, distance in sides:
        if inside:
            total += pixels / distance
            weights += 1 / distance
    frame[y1:y2, x1:x2] = np.rint(total / weights) if weights.any() else GRAY


def box_around(mask: NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    """Return the box xyxy around a mask (H, W), with `BOX_MARGIN` on each side, at least a pixel; None if empty."""
    x, y, w, h = cv2.boundingRect(mask.astype(np.uint8))
    if not w:
        return None
    height, width = mask.shape
    right, below = (max(1, round(BOX_MARGIN * side)) for side in (w, h))
    return max(x - right, 0), max(y - below, 0), min(x + w + right, width), min(y + h + below, height)


@dataclass(frozen=True)
class Swaps:
    """Where the instance of each video is, and the videos whose backgrounds it gets."""

    instances: Mapping[str, InstanceBoxes | str]  # by the path of the record: boxes, or the path of masks
    backgrounds: Mapping[VideoRecord, Sequence[VideoRecord]]  # of its class, and of another one

    def dataset(self, plain: ClipDataset, clip: ClipSettings, clips: int) -> ClipDataset:
        """Change a dataset of uniform clips: its samples then hold, clip by clip, the views of all versions."""
        reading = with_versions(plain.reading, partial(self.swap, plain.reading))
        sampler = UniformVersions(clip, clips, range(len(VERSIONS)))
        return replace(plain, sampler=sampler, reading=reading)

    def swap(self, reading: DecodeSettings, request: VersionRequest) -> Frames:
        """Make a version (jobs/grad_cam.py); without an instance it shows the background alone."""
        height, width = request.frames.shape[2:]
        masks = self.masks(request.record, request.numbers, height, width)[:, None]
        first, _ = resolve_span(request.video.meta, request.record)
        source = self.backgrounds[request.record][request.version - 1]
        return np.where(masks, request.frames, self.background(reading, source, request.numbers - first, height, width))

    def background(
        self, reading: DecodeSettings, record: VideoRecord, numbers: NDArray[np.int64], height: int, width: int
    ) -> Frames:
        """Decode frames, counted from the start of a record, without its instance: (T, 3, height, width).

        A shorter video is repeated. Frames of another size are scaled to cover the wanted one, and cut at the centre.
        """
        with reading.open(record) as video:
            first, meta = resolve_span(video.meta, record)
            frame_numbers, rows = np.unique(first + numbers % meta.num_frames, return_inverse=True)
            frames = video.frames(frame_numbers).transpose(0, 2, 3, 1)
        for frame, mask in zip(frames, self.masks(record, frame_numbers, *frames.shape[1:3]), strict=True):
            box = box_around(mask)
            if box is not None:
                fill_box(frame, box)
        high, wide = frames.shape[1:3]
        frames = frames.transpose(0, 3, 1, 2)
        h, w = min(high, wide * height // width), min(wide, high * width // height)
        middle = Box((wide - w) // 2, (high - h) // 2, max(w, 1), max(h, 1))
        return crop_resize(frames, middle, height, width)[rows]

    def masks(self, record: VideoRecord, numbers: NDArray[np.int64], height: int, width: int) -> Masks:
        """Return the masks (T, H, W) of the frames `numbers` of the file; boxes are filled rectangles."""
        instance = self.instances[record.path]
        if not isinstance(instance, str):
            masks = np.zeros((len(numbers), height, width), bool)
            for frame, rows, columns in pixels_of(instance, numbers):
                masks[frame, rows, columns] = True
            return masks
        with open_video(instance, fps=1.0) as video:
            images = video.frames(numbers)
        if images.shape[2:] != (height, width):
            sizes = f"{images.shape[3]}x{images.shape[2]}, the video {width}x{height}"
            raise DataError(f"{instance}: the masks have {sizes}: masks need the size of their video")
        return np.asarray(images.max(axis=1) >= _INSIDE)


def mean_of_versions(views: Iterable[Tensor], crops: int) -> Tensor:
    """Average the features (B, D) of all views of each version: (B, 3, D). A clip has `crops` views of each version."""
    x = torch.stack([*views], dim=1)
    return x.view(len(x), -1, len(VERSIONS), crops, x.shape[2]).mean(dim=(1, 3))
