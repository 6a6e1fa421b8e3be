"""How invariant networks, and their units, are to transformations of a clip.

A video is decoded once. Moves choose other frames of it, corruptions change the central square of a clip.

A unit fires where its value is above a threshold (sign +), or below one (sign -); the better sign counts. The threshold
is the smallest value with at most the wanted fraction of all values above it. **Ties**, such as the zeros of a ReLU, do
not fire: the unit then fires less often than wanted, and its score is still divided by the wanted rate. So a score is
at most one over that rate, and a unit that never fires scores 0.

Shapes: N samples (clips), V transformed versions of each, D units, C classes, B videos of a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.analysis import verdicts
from vidssl.apps.analysis.evidence import Evidence
from vidssl.apps.analysis.page import measure_sections
from vidssl.apps.analysis.verdicts import SHUFFLES
from vidssl.apps.analysis.versions import Versions, as_read, central_square
from vidssl.base import distributed
from vidssl.base.atomic import file_hash
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import Report
from vidssl.base.types import Batch, Frames, VideoMeta
from vidssl.data.clip_samplers import Clip, ClipSettings
from vidssl.data.read_instance_boxes import InstanceBoxes, read_instance_boxes
from vidssl.data.recordings_and_class_folders import recording_groups
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import TestClips, encode_videos
from vidssl.evaluation.result_files import Results
from vidssl.jobs.grad_cam import VersionRequest, fill_boxes
from vidssl.jobs.job import Count, File, Model, NetworkOptions, Videos, job
from vidssl.jobs.load_network import one_network
from vidssl.jobs.measurement_runner import JobResults, Measurement, list_missing
from vidssl.page.section import Point, Section
from vidssl.transforms.invariance_changes import CORRUPTIONS, GRAY, Change, choose_changes

_Floats = NDArray[np.floating]
Mask = NDArray[np.bool_]
Population = Literal["all", "samples"]  # values that a threshold divides: of samples and versions, or of samples only
_BLOCK = 1 << 24  # values compared at a time


@dataclass(frozen=True)
class UnitInvariance:
    """UnitInvariance of a representation."""

    score: float  # about 1 for units that do not depend on the sample, at most `ceiling`
    ceiling: float  # score of a perfectly invariant and selective representation
    versions: int  # number of transformed versions
    samples: int  # number of samples that have any
    classes: NDArray[np.int64]  # labels with versions, ascending; empty for the measure without classes
    of_class: NDArray[np.float64]  # score of each of these classes


def class_invariance(
    features: _Floats,
    versions: _Floats,
    labels: NDArray[np.int64],
    *,
    top_k: int = 10,
    counted: Mask | None = None,
    population: Population = "all",
) -> UnitInvariance:
    """Measure invariance that keeps classes apart: Eq. 3 of Purushwalkam and Gupta (2020), supplement, section A.

    The local trajectory of a sample is the sample and its transformed versions. For a class y with frequency P(y) the
    threshold of each unit lets it fire on a fraction G_y = P(y) of the population. L_y is the fraction of the
    trajectories of y on which it fires: the mean over a trajectory, then over the samples of y. The score is L_y / G_y,
    averaged over the `top_k` best units for y, then over classes.

    With `population="all"` the population is all trajectories, as in the paper, where every sample lies on one. With
    "samples" it is the samples only: then a unit that responds to the transformation itself fires on all versions of
    all classes and counts as perfectly invariant.

    `features` (N, D) are those of the samples, `versions` (N, V, D) of their transformed versions, `counted` (N, V) the
    versions that exist. The means leave out samples and classes without versions.

    Raises:
        ConfigError: `top_k` is not in 1 … D.
        DataError: There are fewer than two classes, no versions, or features that are not finite.
    """
    counted, used = _check(features, versions, counted, top_k)
    names, number = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise DataError("invariance is measured between classes, and all samples have one: use a list with more")
    lengths = 1 + counted.sum(axis=1) * (population == "all")  # values that each sample adds to the population
    sizes = np.bincount(number, lengths).astype(np.int64)
    classes = np.unique(number[used])
    best = np.empty((len(classes), features.shape[1]))  # of each class and unit
    for block, ordered in _blocks(features, versions, counted, population):
        for index, y in enumerate(classes):
            rows = np.flatnonzero((number == y) & used)
            path = np.concatenate([features[rows, None, block], versions[rows, :, block]], axis=1)  # (n, 1 + V, units)
            on = np.pad(counted[rows], ((0, 0), (1, 0)), constant_values=True)
            weight = (on / on.sum(axis=1, keepdims=True) / len(rows)).ravel()
            above, below = path > ordered[-sizes[y] - 1], path < ordered[sizes[y]]
            rates = [weight @ fires.reshape(len(weight), -1).astype(np.float64) for fires in (above, below)]
            best[index, block] = np.maximum(*rates) * len(ordered) / sizes[y]
    of_class = _top_mean(best, top_k)
    ceiling = float(np.mean(sizes.sum() / sizes[classes]))
    labels_used = names[classes].astype(np.int64)
    return UnitInvariance(float(of_class.mean()), ceiling, int(counted.sum()), int(used.sum()), labels_used, of_class)


def firing_invariance(
    features: _Floats,
    versions: _Floats,
    *,
    top_k: int = 10,
    counted: Mask | None = None,
    population: Population = "all",
    rate: float = 0.01,
) -> UnitInvariance:
    """Measure invariance without classes, as Goodfellow et al. (2009).

    The threshold of each unit lets it fire on a fraction G = `rate` of the population, at least once. L is the fraction
    of versions on which it still fires, over the samples on which it fires. The score is L / G, averaged over the
    `top_k` best units. The other arguments and errors are those of `class_invariance`; a single sample is a DataError.
    """
    counted, used = _check(features, versions, counted, top_k)
    if len(features) < 2:
        raise DataError("invariance is measured between samples, and there is one: use a longer list")
    total = len(features) + int(counted.sum()) * (population == "all")
    size = min(max(1, round(rate * total)), total - 1)
    weights = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1)
    best = np.empty((1, features.shape[1]))
    for block, ordered in _blocks(features, versions, counted, population):
        original, changed = features[:, block], versions[:, :, block]
        above, below = ordered[-size - 1], ordered[size]
        rates = []
        for fires, still in ((original > above, changed > above), (original < below, changed < below)):
            fires &= used[:, None]
            fractions = np.einsum("nv,nvd->nd", weights, still)
            rates.append((fractions * fires).sum(axis=0) / np.maximum(fires.sum(axis=0), 1))
        best[0, block] = np.maximum(*rates) * total / size
    none = np.empty(0, np.int64)
    score = float(_top_mean(best, top_k)[0])
    return UnitInvariance(score, total / size, int(counted.sum()), int(used.sum()), none, none.astype(np.float64))


def _check(features: _Floats, versions: _Floats, counted: Mask | None, top_k: int) -> tuple[Mask, Mask]:
    """Check values; return which versions exist, and which samples have any."""
    if counted is None:
        counted = np.ones(versions.shape[:2], bool)
    if not 1 <= top_k <= features.shape[1]:
        raise ConfigError(f"top_k {top_k} of {features.shape[1]} units: choose 1 to {features.shape[1]}")
    if not counted.any():
        raise DataError("no sample has a transformed version: there is nothing to measure")
    if not (np.isfinite(features).all() and np.isfinite(versions[counted]).all()):
        raise DataError("features are not finite: the weights of the network are broken")
    return counted, np.asarray(counted.any(axis=1))


def _blocks(
    features: _Floats, versions: _Floats, counted: Mask, population: Population
) -> Iterator[tuple[slice, _Floats]]:
    """Split the units into blocks, to bound memory; yield each with the sorted values (M, units) of its population."""
    samples, length, dim = versions.shape
    units = max(1, _BLOCK // (samples * (1 + length)))
    for first in range(0, dim, units):
        block = slice(first, first + units)
        values = features[:, block]
        if population == "all":
            values = np.concatenate([values, versions[:, :, block][counted]])
        yield block, np.sort(values, axis=0)


def _top_mean(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Average the `count` largest values of each row (C, D): (C,)."""
    means: NDArray[np.float64] = np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1)
    return means


FRACTIONS = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left


def covered(boxes: Mapping[str, InstanceBoxes], request: VersionRequest, fraction: float) -> Frames:
    """Make a version with a fraction of the instance covered; `boxes` are by the path of the record.

    Frames without a box are equal in all versions.
    """
    return fill_boxes(request, request.frames.copy(), boxes, GRAY, fraction)


def shift(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float) -> Clip:
    """Start later by a fraction of the clip's span."""
    return _start_at(settings, meta, clip, [settings.later(meta, clip.first, fraction * settings.span(meta))])


def gap(settings: ClipSettings, meta: VideoMeta, clip: Clip, frames: float) -> Clip:
    """Start `frames` frames after the clip's last one; if that is too late, end as many before its first."""
    distance, span = round(frames), settings.span(meta)
    before = settings.later(meta, clip.first - distance + 1, -span)
    return _start_at(settings, meta, clip, [clip.last + distance, before])


def speed(settings: ClipSettings, meta: VideoMeta, clip: Clip, factor: float) -> Clip:
    """Play `factor` times as fast: over a longer span about the same centre, shifted into the video."""
    span, own_span = settings.span(meta, factor), settings.span(meta)
    starts = settings.starts(meta, span)
    if not starts or not settings.starts(meta, own_span):
        return clip
    start = settings.later(meta, clip.first, (own_span - span) // 2)
    return settings.clip(meta, min(max(start, 0), starts - 1), span)


def reverse_clip(settings: ClipSettings, meta: VideoMeta, clip: Clip, _: float) -> Clip:
    """Play backwards."""
    return Clip(clip.indices[::-1], clip.first, clip.last)


# The amounts make a trajectory. Where the video is too short a clip is itself: a version that changes nothing is not
# counted.
MOVES = {
    "instance": Change(partial(covered, {}), FRACTIONS, "covered fraction of the instance's box", kind="frames"),
    "shift": Change(shift, (-0.5, -0.25, 0.25, 0.5), "fraction of the clip's span", kind="clip", needs_motion=True),
    "gap": Change(gap, (5, 10, 20, 40), "frames between the clips", kind="clip"),
    "speed": Change(speed, (0.5, 0.75, 1.5, 2.0), "factor", kind="clip", needs_motion=True),
    "reverse": Change(reverse_clip, (-1.0,), "factor of the speed", kind="clip", needs_motion=True),
}


def _start_at(settings: ClipSettings, meta: VideoMeta, clip: Clip, starts: Sequence[int]) -> Clip:
    """Start at the first of the frames at which a whole clip fits into the video; else return the clip itself."""
    span = settings.span(meta)
    fitting = [start for start in starts if 0 <= start < settings.starts(meta, span)]
    return settings.clip(meta, fitting[0], span) if fitting else clip


TRANSFORMATIONS: dict[str, Change] = {**CORRUPTIONS, **MOVES}


def choose_transformations(
    names: Sequence[str] | None, frames: int, boxes: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the transformations that can be measured on clips of some frames, as `choose_changes`."""
    excluded = {}
    if frames == 1:
        moving = [name for name, kind in MOVES.items() if kind.needs_motion]
        excluded = dict.fromkeys(moving, "a clip of one frame has no motion")
    if not boxes:
        excluded["instance"] = "it needs boxes=FILE"
    return choose_changes("transformation", TRANSFORMATIONS, names, excluded)


@dataclass(frozen=True)
class TrajectoryFeatures:
    """Features of samples and of their versions; the samples of a video follow one another."""

    x: NDArray[np.float32]  # (N, D)
    versions: NDArray[np.float32]  # (N, V, D)
    changed: NDArray[np.bool_]  # (N, V): whether a version differs from its sample in any pixel
    index: NDArray[np.int64]  # (N,): row of the list


def trajectories(test: TestClips, names: Sequence[str], boxes: Mapping[str, InstanceBoxes] | None = None) -> Versions:
    """Return the versions that transformations make of the clips of a test; `instance` needs the boxes."""
    instance = TRANSFORMATIONS["instance"]._replace(apply=partial(covered, boxes or {}))
    table = {**TRANSFORMATIONS, "instance": instance}
    changed = [(name, place) for name in names for place in range(len(table[name].amounts))]
    return Versions(test.clip, test.clips, test.size, table, changed, test.short_side)


def encode_trajectories(versions: Versions, batch: Batch, features: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """Arrange the features of a batch, and whether views differ from their clips: (B, C, V, D) and (B, C, V)."""
    pairs = zip(batch.views, versions.originals, strict=True)
    changed = ((view != batch.views[original]).flatten(1).any(dim=1) for view, original in pairs)
    return versions.split(features), versions.split(changed)


def collect_trajectories(index: Tensor, x: Tensor, changed: Tensor) -> TrajectoryFeatures:
    """Collect what `encode_trajectories` returned for videos, the rows `index` of a list."""
    values, differs = x.flatten(0, 1).numpy(), changed.flatten(0, 1).numpy()
    return TrajectoryFeatures(values[:, 0], values[:, 1:], differs[:, 1:], index.repeat_interleave(x.shape[1]).numpy())


_SHUFFLES = 39  # stream of random numbers


def score_features(
    features: TrajectoryFeatures, versions: Versions, videos: VideoList, measure: "Invariance"
) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
    """Return the scores by name, their details, and the transformations that change no clip, with the reason."""
    x, labels = features.x, videos.labels[features.index]
    # Each sample is its own version, or another sample is: these do not enter the population.
    order = generator(0, len(labels)).permutation(len(labels))
    measured: Callable[..., UnitInvariance] = partial(firing_invariance, top_k=measure.top_k)
    shuffled = partial(measured, x, x[order, None])
    if measure.variant == "class":
        measured = partial(class_invariance, labels=labels, top_k=measure.top_k)
        shuffled = partial(measured, x, x[:, None], labels=labels[order])
    unchanged = measured(x, x[:, None], population="samples")
    scores: dict[str, float] = {}
    details: dict[str, Any] = {}
    without: dict[str, str] = {}
    for name in dict.fromkeys(name for name, _ in versions.changed):
        places = [n for n, version in enumerate(versions.changed) if version[0] == name]
        rows = slice(places[0], places[-1] + 1)
        counted = features.changed[:, rows]
        if not counted.any():
            without[name] = "it changes no clip: the videos are too small or too short for it, or have no box"
            continue
        invariance = measured(x, features.versions[:, rows], counted=counted, population=measure.population)
        classes = [videos.class_name(int(label)) for label in invariance.classes]
        scores[f"invariance_{name}"] = invariance.score
        details[name] = {
            "amounts_are": TRANSFORMATIONS[name].unit,
            "versions": invariance.versions,
            "unchanged_versions": counted.size - invariance.versions,
            "samples": invariance.samples,
            "ceiling": invariance.ceiling,
            "per_class": dict(zip(classes, invariance.of_class.tolist(), strict=True)),
        }
    if not scores:
        raise DataError(f"no transformation changes any clip of {videos.path}: name others")
    numbers = {
        "invariance_mean": float(np.mean([*scores.values()])),
        **scores,
        "invariance_unchanged": unchanged.score,
        "invariance_shuffled": shuffled(population="samples").score,
        "invariance_ceiling": unchanged.ceiling,
    }
    return numbers, details, without


def shuffled_scores(
    features: TrajectoryFeatures, videos: VideoList, measure: "Invariance", groups: NDArray[np.int64], count: int
) -> list[float]:
    """Score unchanged clips with shuffled labels, `count` times: what the best units reach by chance.

    Recordings (N of the list) of equal numbers of clips exchange their labels, as their videos are alike.
    """
    x, labels, group = features.x, videos.labels[features.index], groups[features.index]
    members = [np.flatnonzero(group == number) for number in np.unique(group)]
    by_size: dict[int, list[NDArray[np.int64]]] = {}
    for rows in members:
        by_size.setdefault(len(rows), []).append(rows)
    scores = []
    for draw in range(count):
        shuffled = labels.copy()
        for size, same in by_size.items():
            order = generator(0, _SHUFFLES, draw, size).permutation(len(same))
            for rows, source in zip(same, order, strict=True):
                shuffled[rows] = labels[same[source]]
        scores.append(class_invariance(x, x[:, None], shuffled, top_k=measure.top_k, population="samples").score)
    return scores


INVARIANCE = Section(
    "invariance",
    "Invariance",
    "Does the network still see the class when the clip is changed: covered, rotated, slower …? The invariance score "
    "of the changed clips is compared with that of unchanged ones, and with what chance reaches, that of shuffled "
    "labels.",
)
COMPARED = ("unchanged", "shuffled")  # the baselines of the transformations
_CHANGES = {  # in plain words
    "occlusion": "partly covered",
    "viewpoint": "zoomed in",
    "rotation": "rotated",
    "illumination": "other light",
    "colour": "other colours",
    "blur": "blurred",
    "instance": "instance covered",
    "shift": "moved in time",
    "gap": "another moment",
    "speed": "other speed",
    "reverse": "reversed",
}


@job
def analyze_invariance(
    model: Model | Sequence[Model],
    videos: Videos,
    *,
    out: File | None = None,
    transformations: Sequence[str] | None = None,
    top_k: Count = 10,
    variant: Literal["class", "goodfellow"] = "class",
    population: Literal["all", "samples"] = "all",
    boxes: File | None = None,
    splits: Sequence[int] | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Measure how invariant networks are to transformations of the central square of a clip (or of `clips`).

    Args:
        model: One network or several, as in `test`.
        videos: The videos, with labels for the variant `class`.
        out: Folder for results.json and index.html.
        transformations: Default: all that apply of occlusion, viewpoint, rotation, illumination, colour, blur,
            instance, shift, gap, speed, reverse.
        top_k: Number of best units.
        variant: Thresholds, rates and best units per class, or for all videos together.
        population: Compute thresholds from clips and transformed clips, or from clips only.
        boxes: CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame.
        splits: Measure once per split, as 1 2 3; the number replaces `{split}` in paths and settings.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        The results of each network, by its name.
    """
    work = Invariance(transformations, top_k, variant, population, None if boxes is None else Path(boxes))
    return measure_sections(work, model, videos, options, out, invariance_section, splits=splits)


@dataclass
class Invariance(Measurement):
    """The invariance of the units of a network."""

    kind: ClassVar[str] = "invariance"
    command: ClassVar[str] = "analyze invariance"
    transformations: Sequence[str] | None = None  # names; None: all that apply
    top_k: int = 10  # number of best units, of each class or of all
    variant: Literal["class", "goodfellow"] = "class"  # `class_invariance` or `firing_invariance`
    population: Population = "all"  # the values from which thresholds are computed
    boxes: Path | None = None  # file of the instances' boxes

    def options(self, options: NetworkOptions) -> NetworkOptions:
        """Measure the central square, of one clip unless there are more."""
        return central_square(options, "measured")

    def needs_labels(self) -> bool:
        """Whether classes are measured."""
        return self.variant == "class"

    def check(self) -> Tree:
        """Choose the transformations."""
        test, units, labels = one_network(self.subject).test, self.subject.encoder.dim, {*self.query.labels.tolist()}
        if self.variant == "class" and (-1 in labels or len(labels) < 2):
            raise DataError(f'variant="class" needs two labelled classes in {self.query.path}; or variant="goodfellow"')
        boxes = None if self.boxes is None else read_instance_boxes(self.boxes, self.query)
        if self.top_k > units:
            raise ConfigError(f"top_k={self.top_k} is more than the {units} units of {self.subject.name}")
        names, self.left_out = choose_transformations(self.transformations, test.clip.frames, boxes is not None)
        self.versions = trajectories(test, names, boxes)
        amounts = {name: TRANSFORMATIONS[name].amounts for name in names}
        self.settings: Tree = {"variant": self.variant, "top_k": self.top_k, "population": self.population}
        self.settings = as_read({**self.settings, "transformations": amounts})
        return {"invariance": self.settings, "boxes": None if self.boxes is None else file_hash(self.boxes)}

    def measure(self) -> Results:
        """Encode clips and their versions, and score the units."""
        subject, test, query = self.subject, self.subject.test, self.query
        dataset = self.versions.dataset(query, test, skip=test.skips)
        # A video has as many versions of each clip as there are transformations.
        fewer = test.model_copy(update={"batch_size": max(1, test.batch_size // test.clips)})
        encode = partial(encode_trajectories, self.versions)
        columns, missing = encode_videos(subject.encoder, dataset, fewer, subject.device, encode, subject.name)
        if not distributed.is_main():
            return {}
        features = collect_trajectories(*columns)
        numbers, details, without = score_features(features, self.versions, query, self)
        results: Results = {
            **numbers,
            "details": details,
            "left_out": {**self.left_out, **without},
            "num_videos": len({*features.index.tolist()}),
            "num_samples": len(features.x),
            "num_units": features.x.shape[1],
            "missing": list_missing(missing),
            "boxes": None if self.boxes is None else str(self.boxes),
            "measure": self.settings,
        }
        if self.per_video and self.variant == "class":
            results["shuffles"] = shuffled_scores(features, query, self, recording_groups(query).number, SHUFFLES)
        return results


def invariance_section(evidence: Evidence) -> Section:
    """Under which changes units keep responding."""
    networks, first = evidence.networks, evidence.first
    means = {network: results.get("mean", results) for network, results in networks.items()}
    measured = [[name for name in TRANSFORMATIONS if f"invariance_{name}" in numbers] for numbers in means.values()]
    names = {_changed(name): name for name in TRANSFORMATIONS if any(name in row for row in measured)}
    keys = {text: f"invariance_{name}" for text, name in {COMPARED[0]: COMPARED[0], **names}.items()}
    if all(row == measured[0] for row in measured):
        keys["mean of the changes"] = "invariance_mean"
    perfect = next(iter(means.values()))["invariance_ceiling"]
    notes = ["1 is a unit that ignores the clip.", *evidence.left_out]
    if "mean of the changes" not in keys:
        notes.append("no mean: the networks were not measured with the same transformations")
    clips = "" if "splits" in first else f"; {first['num_samples']} clips"
    units = f"the {first['measure']['top_k']} best of {first['num_units']} units"
    section = partial(evidence.section, INVARIANCE, setting=f"{evidence.setting}{clips}; {units}")
    if not len(evidence.recordings):
        keys["shuffled labels"] = "invariance_shuffled"
        scores = evidence.quantity("Invariance score", keys, {"perfect": perfect}, percent=False)
        return section([scores], notes=notes)
    highest = {network: max(results["shuffles"]) for network, results in networks.items()}
    shuffled = next(iter(highest.values()))
    scores = evidence.quantity("Invariance score", keys, {"shuffled labels": shuffled, "perfect": perfect}, False)
    of_chance = {network: Point(score) for network, score in highest.items()}
    scores = replace(scores, rows={**scores.rows, f"shuffled labels, highest of {SHUFFLES}": of_chance})
    worded = {_CHANGES.get(name, name): first[f"invariance_{name}"] for name in first["details"]}
    unchanged = first[f"invariance_{COMPARED[0]}"]
    verdict = verdicts.invariance(evidence.sample, unchanged, worded, shuffled, _untrained_invariance(networks))
    interval = (
        "The score has no interval: the best units are chosen on these videos. It is compared with shuffled labels "
        f"instead; the line is the highest of {SHUFFLES} draws for the trained network."
    )
    return section([scores], verdict, [interval, *notes])


def _untrained_invariance(networks: Mapping[str, Results]) -> str:
    """What is said of the second network."""
    if len(networks) == 1:
        return ""
    _, results = networks.values()
    highest = max(results["shuffles"])
    kept = sum(results[f"invariance_{name}"] > highest for name in results["details"])
    learned = results[f"invariance_{COMPARED[0]}"] > highest
    how = f"under {kept} of {len(results['details'])}" if learned else "chance alone would do as well"
    return f"; untrained network: {how}"


def _changed(name: str) -> str:
    """A change in plain words, with its name in results.json."""
    return f"{_CHANGES[name]} ({name})" if name in _CHANGES else name
