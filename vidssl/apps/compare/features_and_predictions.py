"""What a comparison measures of each encoder: features that are kept, predictions of each video, and what they cost."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import reduce
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from vidssl.base.atomic import replacing, write_json
from vidssl.base.config import Tree
from vidssl.base.errors import DataError, VidsslError
from vidssl.base.safe_parse import read_arrays, read_json
from vidssl.base.types import Features
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.to_device import normalised
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import JoinedClips, join_features
from vidssl.evaluation.leave_recording_out import FEW_LABEL_DRAWS, Predictions, num_neighbours, predict
from vidssl.evaluation.train_test_overlap import measure_overlap
from vidssl.jobs.extract import extract_to, loaded
from vidssl.jobs.job import Model, NetworkOptions
from vidssl.jobs.load_network import Subject, load_subject
from vidssl.models.eval_mode import eval_mode
from vidssl.models.floors import FLOORS
from vidssl.models.joined_features import parts_of

_log = logging.getLogger(__name__)
_FEATURES, _PREDICTIONS = "features", "predictions"

SAME_CLIPS = 4  # of a video
_FLOOR = "floor:"
_VERSION = 2  # of the predictions
_LONG = 60.0  # seconds, after which the time that is left is logged


@dataclass
class ComparedEncoder:
    """An encoder of a comparison: what it is, its features and what they cost, or why there are none."""

    name: str
    floor: bool = False  # thumbnails, differences of frames, an untrained network
    facts: Tree = field(default_factory=dict)
    features: Features | None = None
    failure: VidsslError | None = None


def extract_all(
    models: Sequence[tuple[str, Model]],
    videos: VideoList,
    data: Tree,
    options: NetworkOptions,
    out: Path,
    same_seconds: float | None = None,
    strict: bool = True,
    limit: int | None = None,
) -> list[ComparedEncoder]:
    """Extract the features of each encoder, unless they are in `out`; one that fails does not lose the others.

    With `same_seconds` each encoder is there twice: with its own clips, and with `SAME_CLIPS` clips of so many seconds.
    Without `strict` a few videos that cannot be read are left out, instead of the encoder. The features of a sum are
    those of its parts, which are among the models: see `with_parts`. Floors come last.
    """
    compared, of_model = list[ComparedEncoder](), dict[str, ComparedEncoder]()
    models = sorted(models, key=lambda named: len(parts_of(named[1])) > 1)  # parts first
    slow = sum(not str(model).startswith(_FLOOR) for _, model in models)  # floors come last, and take little
    _log.info("encoders: %d, floors: %d; one after another", slow, len(models) - slow)
    start = time.perf_counter()
    for number, (name, model) in enumerate(models):
        passed = time.perf_counter() - start
        if passed > _LONG and number < slow:  # of a short comparison the bars say enough
            remaining = timedelta(seconds=round(passed / number * (slow - number)))
            _log.info("%d of %d encoders are done: about %s to go if the rest is as fast", number, slow, remaining)
        try:
            subject = load_subject(model, options, shared_config=True)
            subject = subject if strict else subject.skipping_few()
            kinds = {"": subject}
            if same_seconds is not None:
                kinds[", same clips"] = with_clips(subject, same_seconds)
            for suffix, kind in kinds.items():
                parts = parts_of(model) if isinstance(kind.test, JoinedClips) else []
                if parts:
                    of_parts = [of_model[f"{part.model}{suffix}"] for part in parts]
                    compared.append(_join(of_parts, f"{name}{suffix}", kind, videos))
                else:
                    compared.append(_extract(f"{name}{suffix}", kind, videos, data, out, limit))
                of_model[f"{model}{suffix}"] = compared[-1]
        except VidsslError as error:
            if isinstance(error, DataError) and not any(encoder.features is not None for encoder in compared):
                raise  # the videos are at fault: the other encoders would say the same
            _log.warning("%s is left out: %s", name, error)
            of_model[str(model)] = of_model[f"{model}, same clips"] = ComparedEncoder(name, failure=error)
            compared.append(of_model[str(model)])
    return sorted(compared, key=lambda encoder: encoder.floor)


def with_parts(models: Sequence[tuple[str, Model]]) -> list[tuple[str, Model]]:
    """Add the parts of each sum `A+B` that are not there themselves, by their names; `FLOORS` are rows anyway."""
    named = {str(model) for _, model in models} | {f"{_FLOOR}{name}" for name in FLOORS}
    names = dict.fromkeys(part.model for _, model in models if len(parts := parts_of(model)) > 1 for part in parts)
    return [*models, *((name, name) for name in names if name not in named)]


def with_clips(subject: Subject, seconds: float) -> Subject:
    """Return the subject with clips of so many seconds, as many of a video for every encoder, of its own frames."""
    if isinstance(subject.test, JoinedClips):
        return subject  # it is measured by its parts
    clip = ClipSettings(frames=subject.test.clip.frames, seconds=seconds)
    test = subject.test.model_copy(update={"clip": clip, "clips": SAME_CLIPS, "crops": 1})
    return replace(subject, test=test)


def _extract(
    name: str, subject: Subject, videos: VideoList, data: Tree, out: Path, limit: int | None
) -> ComparedEncoder:
    # Rows that are there are taken; those of a part of the videos have a folder of their own.
    path = out / _FEATURES / _key(subject.request(**({} if limit is None else {"limit": limit})))
    _reset_peak()
    start = time.perf_counter()
    there = path.exists()
    extract_to(subject, videos, data, path, title=name)
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
    for part in parts:
        if part.failure is not None:
            raise part.failure
    rows = common_rows(parts)
    features = [of_rows(part.features, rows) for part in parts if part.features is not None]
    joined = join_features(features, [part.weight for part in parts_of(subject.name)])
    sums = {key: _sum([part.facts.get(key) for part in parts]) for key in ("seconds_per_video", "gigaflops_per_video")}
    memory = [part.facts["peak_megabytes"] for part in parts if part.facts.get("peak_megabytes")]
    folders = " + ".join(part.facts["features"] for part in parts)
    costs = {**sums, "peak_megabytes": max(memory, default=None)}
    return _described(name, subject, videos, joined, folders, costs)


def _sum(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


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


def _key(request: Tree) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]


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
    """Return the rows of the list that all measured encoders have."""
    rows = [encoder.features.index.numpy() for encoder in encoders if encoder.features is not None]
    return reduce(np.intersect1d, rows) if rows else np.empty(0, np.int64)


def of_rows(features: Features, rows: NDArray[np.int64]) -> Features:
    """Select rows of the list."""
    places = np.searchsorted(features.index.numpy(), rows)
    x, label, index = features.x[places], features.label[places], features.index[places]
    return replace(features, x=x, label=label, index=index, records=())


def predict_all(
    encoders: Sequence[ComparedEncoder],
    rows: NDArray[np.int64],
    label: NDArray[np.int64],
    groups: NDArray[np.int64],
    folds: NDArray[np.int64],
    shots: Sequence[int],
    out: Path,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Predictions]:
    """Predict each video by each encoder, unless it is in `out`; `label`, `groups` and `folds` are those of `rows`."""
    by_name = {}
    for encoder in encoders:
        assert encoder.features is not None
        features = replace(of_rows(encoder.features, rows), label=torch.from_numpy(label))
        digest = hashlib.sha256(np.ascontiguousarray(features.x.numpy()).tobytes())
        for part in (label, groups, folds, np.array([*shots, FEW_LABEL_DRAWS, num_neighbours(label), _VERSION])):
            digest.update(np.ascontiguousarray(part).tobytes())
        file = out / _PREDICTIONS / f"{digest.hexdigest()[:16]}.npz"
        predictions = _read(file, shots)
        if predictions is None:
            predictions = predict(features, groups, folds, shots, advance=advance)
            _write(file, predictions)
        by_name[encoder.name] = predictions
    return by_name


def _read(file: Path, shots: Sequence[int]) -> Predictions | None:
    try:
        arrays = read_arrays(file)
        few = {n: arrays[f"few_{n}"] for n in shots}
        return Predictions(arrays["knn"], arrays["nearest"], arrays["logistic"], few)
    except (OSError, ValueError, KeyError):
        return None


def _write(file: Path, predictions: Predictions) -> None:
    content = asdict(predictions)
    few = content.pop("few")
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as target:
        np.savez(target, **content, **{f"few_{n}": share for n, share in few.items()})


def right(predictions: Predictions, label: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return by measure which videos (N,) are right; of few labels, in which share of the draws."""
    near = np.where(predictions.nearest < 0, -1, label[predictions.nearest])
    every = {"knn": predictions.knn == label, "R@1": near == label, "logistic": predictions.logistic == label}
    few = {f"logistic_{n}": share for n, share in predictions.few.items()}
    return {**{name: hit.astype(np.float64) for name, hit in every.items()}, **few}
