"""What a comparison measures of each encoder: features that are kept, predictions of each video, and what they cost."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from vidssl.base.atomic import replacing, write_json
from vidssl.base.config import Tree
from vidssl.base.errors import DataError, VidsslError
from vidssl.base.progress import progress as bar
from vidssl.base.safe_parse import read_arrays, read_json
from vidssl.base.types import Features
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.list_identity import identify
from vidssl.data.to_device import normalised
from vidssl.data.video_list import VideoList
from vidssl.evaluation.calibrated_classifier import nested_probabilities
from vidssl.evaluation.features import JoinedClips, join_features
from vidssl.evaluation.leave_recording_out import FEW_LABEL_DRAWS, Predictions, num_neighbours, predict_left_out
from vidssl.evaluation.train_test_overlap import measure_overlap
from vidssl.jobs.extract import FOLDER_REMEDY, extract_to, features_fit, loaded, open_folder
from vidssl.jobs.job import Model, NetworkOptions
from vidssl.jobs.load_network import Subject, load_subject
from vidssl.models.eval_mode import eval_mode
from vidssl.models.joined_features import parts_of

_log = logging.getLogger(__name__)
_FEATURES, _PREDICTIONS = "features", "predictions"

SAME_CLIPS = 4  # of a video
OF_SAME_CLIPS = ", same clips"  # in the names of encoders that are measured on these
_FLOOR = "floor:"
_VERSION = 3  # of the predictions


@dataclass
class ComparedEncoder:
    """An encoder of a comparison: what it is, what it costs, and its features."""

    name: str
    floor: bool  # thumbnails, differences of frames, motion, an untrained network
    facts: Tree
    features: Features
    part: bool = False  # of a sum that is compared, not an encoder that was asked for


@dataclass(frozen=True)
class AllPredictions(Predictions):
    """Predictions of each video (N,), also those that `vidssl predict` states its accuracy by."""

    chosen: NDArray[np.int64]  # by kNN or logistic regression, whichever predicts the rest better


def extract_all(
    models: Sequence[tuple[str, Model]],
    videos: VideoList,
    options: NetworkOptions,
    out: Path,
    same_seconds: float | None = None,
    strict: bool = True,
    part: Tree | None = None,
    sources: Sequence[Path] = (),
) -> tuple[list[ComparedEncoder], dict[str, VidsslError]]:
    """Extract the features of each encoder, unless they are in `out`; the second result is why others have none.

    With `same_seconds` each encoder is there twice: with its own clips, and with `SAME_CLIPS` clips of so many seconds.
    Without `strict` videos that cannot be read are left out, instead of the encoder. `part` states which part of
    the videos these are. The features of a sum are those of its parts, which are among the models. Floors come last.
    Features that the folders `sources` have are taken from there; a DataError if one is of no encoder and its clips.
    """
    encoders, failures, part = dict[str, ComparedEncoder](), dict[str, VidsslError](), part or {}
    models = sorted(models, key=lambda named: len(parts_of(named[1])) > 1)  # parts first
    name_of = {str(model): name for name, model in models}
    data, folders = identify(videos), [open_folder(path, FOLDER_REMEDY, FOLDER_REMEDY) for path in sources]
    unused = folders
    for model in [model for _, model in models if folders and len(parts_of(model)) < 2]:  # before the long work
        with suppress(VidsslError):  # it is named where the encoder is left out
            of_model = _load(model, options, same_seconds, strict).values()
            unused = [folder for folder in unused if not any(features_fit(folder, subject) for subject in of_model)]
    if unused:
        network = unused[0].features.made_by["network"]
        of_sum = len(parts_of(network)) > 1
        why = "a sum, whose parts are compared" if of_sum else "and no encoder is this network with the same clips"
        remedy = "give features of the parts" if of_sum else "name its encoder and clips"
        reason = f"{unused[0].path} has features of {network}, {why}"
        raise DataError(f"{reason}: {remedy}, or leave this folder out of features=FOLDER")
    for name, model in bar(models, title="encoders and floors", unit="encoder", leave=False):
        try:
            subjects = _load(model, options, same_seconds, strict)
            parts = parts_of(model) if isinstance(subjects[""].test, JoinedClips) else []
            names_of_parts = [name_of[part.model] for part in parts]
            if broken := [failures[part] for part in names_of_parts if part in failures]:
                raise broken[0]
            for clips, of_clips in subjects.items():
                title, joined = f"{name}{clips}", [encoders[f"{part}{clips}"] for part in names_of_parts]
                if joined:
                    encoders[title] = _join(joined, title, of_clips, videos)
                else:
                    fitting = [folder.path for folder in folders if features_fit(folder, of_clips)]
                    encoders[title] = _extract(title, of_clips, videos, data, out, part, fitting)
        except VidsslError as error:
            if isinstance(error, DataError) and not encoders:
                raise  # the videos are at fault: other encoders would say the same
            _log.warning("%s is left out: %s", name, error)
            failures[name] = error
    return sorted(encoders.values(), key=lambda encoder: encoder.floor), failures


def _load(model: Model, options: NetworkOptions, same_seconds: float | None, strict: bool) -> dict[str, Subject]:
    """Load an encoder: with its own clips and, if asked for, with those of all, by what is added to its name."""
    subject = load_subject(model, options, shared_config=True)
    subject = subject if strict else subject.skipping()
    return {"": subject} | ({} if same_seconds is None else {OF_SAME_CLIPS: with_clips(subject, same_seconds)})


def with_clips(subject: Subject, seconds: float) -> Subject:
    """Return the subject with clips of so many seconds, as many of a video for every encoder, of its own frames."""
    if isinstance(subject.test, JoinedClips):
        return subject  # it is measured by its parts
    clip = ClipSettings(frames=subject.test.clip.frames, seconds=seconds)
    test = subject.test.model_copy(update={"clip": clip, "clips": SAME_CLIPS, "crops": 1})
    return replace(subject, test=test)


def _extract(
    name: str, subject: Subject, videos: VideoList, data: Tree, out: Path, part: Tree, sources: Sequence[Path]
) -> ComparedEncoder:
    request = json.dumps(subject.request(**part), sort_keys=True)  # of a part of the videos there is a folder beside
    path = out / _FEATURES / hashlib.sha256(request.encode()).hexdigest()[:16]  # rows that are there are taken
    _reset_peak()
    start = time.perf_counter()
    there = path.exists() or bool(sources)
    extract_to(subject, videos, data, path, title=name, sources=sources)
    features = loaded(path)
    seconds = (time.perf_counter() - start) / max(1, len(features.x))
    costs = {} if there else {"seconds_per_video": seconds, "peak_megabytes": _peak()}
    with suppress(OSError, ValueError):  # features that were there before have their costs
        costs = costs or read_json(path.with_suffix(".json"))
    if "gigaflops_per_video" not in costs:
        costs["gigaflops_per_video"] = _gigaflops(subject)
        write_json(path.with_suffix(".json"), costs)
    return _described(name, subject, videos, features, path.relative_to(out).as_posix(), costs)


def _join(parts: Sequence[ComparedEncoder], name: str, subject: Subject, videos: VideoList) -> ComparedEncoder:
    """Make the features of a sum of those of its parts."""
    rows = common_rows(parts)
    features = [of_rows(part.features, rows) for part in parts]
    joined = join_features(features, [part.weight for part in parts_of(subject.name)])
    numbers = {key: [part.facts.get(key) for part in parts] for key in ("seconds_per_video", "gigaflops_per_video")}
    sums = {key: None if None in of_parts else sum(filter(None, of_parts)) for key, of_parts in numbers.items()}
    memory = [part.facts["peak_megabytes"] for part in parts if part.facts.get("peak_megabytes")]
    folders = " + ".join(part.facts["features"] for part in parts)
    costs = {**sums, "peak_megabytes": max(memory, default=None)}
    return _described(name, subject, videos, joined, folders, costs)


def _described(
    name: str, subject: Subject, videos: VideoList, features: Features, folder: str, costs: Tree
) -> ComparedEncoder:
    weights = sum(weight.numel() * weight.element_size() for weight in subject.backbone.state_dict().values())
    facts = {
        "checkpoint": subject.origin,
        "protocol": subject.describe()["protocol"],
        "overlap": measure_overlap(videos, None, subject.training)["training"],  # with the videos of its training
        "features": folder,
        "dimension": subject.encoder.dim,
        "megabytes": weights / 1e6,
        **costs,
    }
    floor = all(str(origin["path"]).startswith(_FLOOR) for origin in subject.origin.get("parts", [subject.origin]))
    return ComparedEncoder(name, floor, facts, features)


@torch.no_grad()
def _gigaflops(subject: Subject) -> float | None:
    """Count floating-point operations of products and convolutions for the clips of a video; None: cannot be counted.

    Unlike seconds they do not depend on what else the machine does.
    """
    test = subject.test
    frames = test.clip.frames * test.clips * test.crops // test.num_views  # of clips in order all at once
    clip = torch.zeros(1, frames, 3, test.size, test.size, dtype=torch.uint8, device=subject.device)
    with eval_mode(subject.encoder), FlopCounterMode(display=False) as counted, suppress(Exception):
        subject.encoder(normalised(clip, test.mean, test.std))
        return counted.get_total_flops() * test.num_views / 1e9 or None  # 0: torch does not see them
    return None


def _reset_peak() -> None:
    with suppress(OSError):  # in containers without it the peak is that of the process so far
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float | None:
    """Largest resident memory since `_reset_peak`, megabytes; None where the system does not state it as Linux does."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return float(status.partition("VmHWM:")[2].split()[0]) / 1e3


def common_rows(encoders: Sequence[ComparedEncoder]) -> NDArray[np.int64]:
    """Return the rows of the list that all encoders have."""
    return reduce(np.intersect1d, [encoder.features.index.numpy() for encoder in encoders])


def of_rows(features: Features, rows: NDArray[np.int64]) -> Features:
    """Select rows of the list."""
    at = np.searchsorted(features.index.numpy(), rows)
    return replace(features, x=features.x[at], label=features.label[at], index=features.index[at], records=())


def predict_all(
    encoders: Sequence[ComparedEncoder],
    label: NDArray[np.int64],
    groups: NDArray[np.int64],
    folds: NDArray[np.int64],
    shots: Sequence[int],
    out: Path,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, AllPredictions]:
    """Predict each video by each encoder, unless it is in `out`; `label`, `groups`, `folds` are of its rows."""
    by_name, classes = {}, int(label.max()) + 1
    for encoder in encoders:
        features = replace(encoder.features, label=torch.from_numpy(label))
        digest = hashlib.sha256(np.ascontiguousarray(features.x.numpy()).tobytes())
        for part in (label, groups, folds, np.array([*shots, FEW_LABEL_DRAWS, num_neighbours(label), _VERSION])):
            digest.update(np.ascontiguousarray(part).tobytes())
        file = out / _PREDICTIONS / f"{digest.hexdigest()[:16]}.npz"
        try:
            arrays = read_arrays(file)
            few = {n: arrays.pop(f"few_{n}") for n in shots}
            predictions = AllPredictions(**arrays, few=few)
        except (OSError, ValueError, KeyError, TypeError):
            left_out = predict_left_out(features, groups, folds, shots, advance=advance)
            chosen = nested_probabilities(features.x, label, groups, classes).argmax(axis=1)
            predictions = AllPredictions(**vars(left_out), chosen=chosen)
            _write(file, predictions)
        by_name[encoder.name] = predictions
    return by_name


def _write(file: Path, predictions: AllPredictions) -> None:
    content = asdict(predictions)
    few = content.pop("few")
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as target:
        np.savez(target, **content, **{f"few_{n}": fraction for n, fraction in few.items()})


def right(predictions: AllPredictions, label: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return by measure which videos (N,) are right; of few labels, in which fraction of the draws."""
    near = np.where(predictions.nearest < 0, -1, label[predictions.nearest])
    every = {"knn": predictions.knn == label, "R@1": near == label, "chosen": predictions.chosen == label}
    few = {f"logistic_{n}": fraction for n, fraction in predictions.few.items()}
    return {**{name: hit.astype(np.float64) for name, hit in every.items()}, **few}
