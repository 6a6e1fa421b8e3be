"""Evaluation of a run's backbone during its training."""

from dataclasses import dataclass

import torch

from vidssl import distributed
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.samplers import ClipSettings
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.config_schema import Run
from vidssl.engine.interrupt import StopRequest
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.measure import check_measurable, check_names, chosen_protocols, measure
from vidssl.evaluation.protocols import EvaluationProtocol
from vidssl.methods.base import METHODS, Method
from vidssl.video.reader import DecodeSettings


@dataclass(frozen=True)
class Monitor:
    """Evaluation of a network during its training: protocols, and the lists that they read."""

    protocols: dict[str, EvaluationProtocol]
    gallery: VideoList | None
    query: VideoList

    def measure(self, run: Run, method: Method, device: torch.device, request: StopRequest) -> dict[str, float]:
        """Compute the metrics of a network; the random state of the training is not touched."""
        return measure(
            method.backbone,
            self.protocols,
            self.gallery,
            self.query,
            evaluation_clips(run),
            device,
            method.classify if method.classifies else None,
            run.method.classes if method.classifies else 0,
            request.check,
        ).numbers


def build_monitor(run: Run, videos: VideoList) -> Monitor:
    """Read the lists and build the protocols of `evaluate`: mistakes are found before hours of training.

    Args:
        run: With `evaluate.query` set.
        videos: The training list.

    Raises:
        ConfigError: A protocol lacks what it needs.
        DataError: A list cannot be used, the lists do not match, or only one of them names shrunk copies.
    """
    gallery, query = (
        None if path is None else read_list(path, run.data.root, run.data.allow_external)
        for path in (run.evaluate.gallery, run.evaluate.query)
    )
    assert query is not None
    if gallery is not None:
        g, q = gallery, query
        distributed.on_main(lambda: check_copies(g.path, identify(g), q.path, identify(q)))
    classifies = METHODS[run.method.name].classifies
    protocols = chosen_protocols(run.evaluate.protocols, classifies, gallery, query)
    check_measurable(protocols, gallery, query, run.method.classes if classifies else 0)
    if any(protocol.probabilities for protocol in protocols.values()):
        check_names(query, videos.classes, f"in {videos.path}")
    return Monitor(protocols, gallery, query)


def evaluation_clips(run: Run) -> TestClips:
    """Return the clips, crops and decoding settings with which a run evaluates its backbone."""
    decoding = {*DecodeSettings.model_fields, "mean", "std", "workers", "prefetch", "timeout"}
    return TestClips(
        clip=ClipSettings(**run.data.sampler.model_dump(include=set(ClipSettings.model_fields))),
        size=run.test_size,
        **run.data.model_dump(include=decoding),
        **run.evaluate.model_dump(include={"clips", "crops", "short_side", "batch_size", "precision"}),
    )
