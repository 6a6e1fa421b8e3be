"""What a comparison measures of each encoder: features that are kept, predictions of each video, and what they cost."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.api.extract import extract_to, loaded
from vidssl.api.job_arguments import Model, NetworkOptions
from vidssl.api.measured_network import Subject, load_subject
from vidssl.atomic import replacing, write_json
from vidssl.config import Tree
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.column_store import Records
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError, VidsslError
from vidssl.evaluation.group_folds import DRAWS, Predictions, num_neighbours, predict
from vidssl.evaluation.train_test_overlap import measure_overlap
from vidssl.types import Features
from vidssl.untrusted_files import read_arrays, read_json

_log = logging.getLogger(__name__)
_FEATURES, _PREDICTIONS = "features", "predictions"
OUTPUTS = (_FEATURES, _PREDICTIONS)  # folders of a comparison
SAME_CLIPS = 4  # of a video
LATER = 0.25  # seconds
_FLOOR = "floor:"
_LONG = 60.0  # seconds, after which the time that is left is logged
CROPPED = 0.125  # of the side
# What is changed for features of other clips of the videos, in words.
VARIED = {"later": f"clips {LATER:g} s later", "cropped": f"clips without an edge of {CROPPED / 2:.0%} of their size"}


@dataclass
class Encoder:
    """An encoder of a comparison: what it is, its features and what they cost, or why there are none."""

    name: str
    floor: bool = False  # thumbnails, differences of frames, an untrained network
    facts: Tree = field(default_factory=dict)
    features: Features | None = None
    failure: VidsslError | None = None
    varied: dict[str, Features] = field(default_factory=dict)  # of other clips of the videos


def extract_all(
    models: Sequence[tuple[str, Model]],
    videos: VideoList,
    data: Tree,
    options: NetworkOptions,
    out: Path,
    same_seconds: float | None = None,
    vary: bool = False,
    strict: bool = True,
) -> list[Encoder]:
    """Extract the features of each encoder, unless they are in `out`; one that fails does not lose the others.

    With `same_seconds` each encoder is there twice: with its own clips, and with `SAME_CLIPS` clips of so many seconds.
    With `vary` the features of other clips of the videos are extracted too. Without `strict` a few videos that cannot
    be read are left out, instead of the encoder.
    """
    found = []
    readings = f"; each reads the videos {1 + len(VARIED)} times: its clips, {' and '.join(VARIED.values())}"
    slow = sum(not str(model).startswith(_FLOOR) for _, model in models)  # floors come last, and take little
    _log.info("encoders: %d, floors: %d; one after another%s", slow, len(models) - slow, readings if vary else "")
    start = time.perf_counter()
    for number, (name, model) in enumerate(models):
        passed = time.perf_counter() - start
        if passed > _LONG and number < slow:  # of a short comparison the bars say enough
            left = timedelta(seconds=round(passed / number * (slow - number)))
            _log.info("%d of %d encoders are done: about %s to go if the rest is as fast", number, slow, left)
        try:
            subject = load_subject(model, options, shared_config=True)
            subject = subject if strict else subject.skipping_few()
            kinds = {name: subject}
            if same_seconds is not None:
                kinds[f"{name}, same clips"] = with_clips(subject, same_seconds)
            for title, kind in kinds.items():
                encoder = _extract(title, kind, videos, data, out)
                found.append(encoder)
                if vary:
                    encoder.varied = _vary(title, kind, videos, data, out)
        except VidsslError as error:
            if isinstance(error, DataError) and not any(each.features is not None for each in found):
                raise  # the videos are at fault: the other encoders would say the same
            _log.warning("%s is left out: %s", name, error)
            found.append(Encoder(name, failure=error))
    return found


def with_clips(subject: Subject, seconds: float) -> Subject:
    """Return the subject with clips of so many seconds, as many of a video for every encoder, of its own frames."""
    clip = ClipSettings(frames=subject.test.clip.frames, seconds=seconds)
    test = subject.test.model_copy(update={"clip": clip, "clips": SAME_CLIPS, "crops": 1})
    return replace(subject, test=test)


def _extract(name: str, subject: Subject, videos: VideoList, data: Tree, out: Path) -> Encoder:
    path = _folder_of(subject, videos, data, out)
    _reset_peak()
    start = time.perf_counter()
    there = path.exists()
    extract_to(subject, videos, data, path, title=name)
    features = loaded(path)
    weights = sum(each.numel() * each.element_size() for each in subject.backbone.state_dict().values())
    facts = {
        "checkpoint": subject.origin,
        "protocol": subject.describe()["protocol"],
        "overlap": measure_overlap(videos, None, subject.training)["training"],  # with the videos of its training
        "features": path.relative_to(out).as_posix(),
        "dimension": subject.encoder.dim,
        "megabytes": weights / 1e6,
    }
    if not there:
        seconds = (time.perf_counter() - start) / max(1, len(features.x))
        write_json(path.with_suffix(".json"), {"seconds_per_video": seconds, "peak_megabytes": _peak()})
    with suppress(OSError, ValueError):  # features that were there before have their costs
        facts |= read_json(path.with_suffix(".json"))
    return Encoder(name, str(subject.origin["path"]).startswith(_FLOOR), facts, features)


def _vary(name: str, subject: Subject, videos: VideoList, data: Tree, out: Path) -> dict[str, Features]:
    """Extract features of the same videos from other clips: a quarter of a second later, and cropped by an eighth."""
    later = Records(videos.root, [])
    for row in range(len(videos)):
        record = videos.records.row(row)
        later.append(replace(record, start=(record.start or 0.0) + LATER), videos.records.root_of(row))
    moved = replace(videos, records=later)
    path = _folder_of(subject, moved, data, out)
    extract_to(subject, moved, data, path, title=f"{name}, later")
    found = {"later": loaded(path)}
    path = _folder_of(subject, videos, {**data, "cropped": CROPPED}, out)
    hook = subject.backbone.register_forward_pre_hook(lambda module, given: (_cropped(given[0]), *given[1:]))
    try:
        extract_to(subject, videos, {**data, "cropped": CROPPED}, path, title=f"{name}, cropped")
    finally:
        hook.remove()
    return {**found, "cropped": loaded(path)}


def _cropped(clips: Tensor) -> Tensor:
    """Enlarge the middle of clips (B, 3, T, S, S) to their size."""
    size = clips.shape[-1]
    edge = round(size * CROPPED / 2)
    inner = clips[..., edge : size - edge, edge : size - edge].transpose(1, 2).flatten(0, 1)
    large = functional.interpolate(inner, (size, size), mode="bilinear")
    return large.view(len(clips), -1, *large.shape[1:]).transpose(1, 2)


def _folder_of(subject: Subject, videos: VideoList, data: Tree, out: Path) -> Path:
    return out / _FEATURES / _key(subject.request(list=videos.fingerprint, data=data))


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


def common_rows(encoders: Sequence[Encoder]) -> NDArray[np.int64]:
    """Return the rows of the list that all measured encoders have."""
    rows: NDArray[np.int64] | None = None
    for encoder in encoders:
        if encoder.features is not None:
            own = encoder.features.index.numpy()
            rows = own if rows is None else np.intersect1d(rows, own)
    return np.empty(0, np.int64) if rows is None else rows


def of_rows(features: Features, rows: NDArray[np.int64]) -> Features:
    """Select rows of the list."""
    place = np.searchsorted(features.index.numpy(), rows)
    return replace(features, x=features.x[place], label=features.label[place], index=features.index[place], records=())


def predict_all(
    encoders: Sequence[Encoder],
    rows: NDArray[np.int64],
    label: NDArray[np.int64],
    groups: NDArray[np.int64],
    folds: NDArray[np.int64],
    shots: Sequence[int],
    out: Path,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Predictions]:
    """Predict each video by each encoder, unless it is in `out`; `label`, `groups` and `folds` are those of `rows`."""
    found = {}
    for encoder in encoders:
        assert encoder.features is not None
        features = replace(of_rows(encoder.features, rows), label=torch.from_numpy(label))
        digest = hashlib.sha256(np.ascontiguousarray(features.x.numpy()).tobytes())
        for part in (label, groups, folds, np.array([*shots, DRAWS, num_neighbours(label)])):
            digest.update(np.ascontiguousarray(part).tobytes())
        file = out / _PREDICTIONS / f"{digest.hexdigest()[:16]}.npz"
        predictions = _read(file, shots)
        if predictions is None:
            predictions = predict(features, groups, folds, shots, advance=advance)
            _write(file, predictions)
        found[encoder.name] = predictions
    return found


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
