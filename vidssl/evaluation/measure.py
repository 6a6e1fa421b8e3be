"""From a network and lists to numbers: extract once, then every protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.config import build
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips, extract
from vidssl.evaluation.preconditions import check_measurable, own_rows
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.models.backbones import Backbone

Classifier = Callable[[Tensor], Tensor]  # backbone outputs (B, D) to class probabilities (B, classes)


@dataclass(frozen=True)
class Measurement:
    """All that protocols found out about a network.

    Attributes:
        found: For each protocol what it measured.
        gallery: The training videos that could be read; None where no protocol asked.
        query: The tested videos that could be read.
        missing_gallery: Path and reason of those that could not.
        missing_query: Path and reason of those that could not.
    """

    found: Mapping[str, Measured]
    gallery: VideoList | None
    query: VideoList
    missing_gallery: tuple[tuple[str, str], ...]
    missing_query: tuple[tuple[str, str], ...]

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by name."""
        return {name: value for measured in self.found.values() for name, value in measured.numbers.items()}


class _WithProbabilities(Backbone):
    """A backbone whose output is followed by the probabilities of the classes: both are averaged over views."""

    def __init__(self, backbone: Backbone, classify: Classifier, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.dim = backbone.dim + classes
        self._classify = classify
        self.train(backbone.training)  # extraction leaves the mode as it found it

    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(x)
        return torch.cat([h.float(), self._classify(h)], dim=1)


def chosen_protocols(
    choices: Sequence[Any] | None, classifies: bool, gallery: VideoList | None, query: VideoList
) -> dict[str, EvaluationProtocol]:
    """Build protocols by name.

    Args:
        choices: Their bound configs; None: accuracy where there is a classifier, retrieval, kNN and uniformity where
            there is a gallery, and of lists without labels uniformity alone.
        classifies: Whether the network has a classifier.
        gallery: The list of training videos, if there is one.
        query: The list that is tested.

    Raises:
        ConfigError: A protocol is named twice, or none is left.
    """
    if choices is None:
        lists = [videos for videos in (gallery, query) if videos is not None]
        labelled = all((videos.labels >= 0).all() for videos in lists)
        names = [
            *(["accuracy"] if classifies and labelled else []),
            *(["retrieval", "knn"] if gallery is not None and labelled else []),
            *(["uniformity"] if gallery is not None else []),
        ]
        if not names:
            raise ConfigError(
                f"there is nothing to measure on {query.path}: accuracy needs a classifier and labels, all else a list "
                "of training videos (--train-list, or evaluate.gallery)"
            )
        return {name: PROTOCOLS[name](PROTOCOLS[name].Config()) for name in names}  # type: ignore[attr-defined]
    built: dict[str, EvaluationProtocol] = {}
    for choice in choices:
        if choice.name in built:
            raise ConfigError(f"protocol {choice.name} is named twice: each can be measured once at a time")
        built[choice.name] = build(PROTOCOLS, choice)
    return built


def measure(
    backbone: Backbone,
    protocols: Mapping[str, EvaluationProtocol],
    gallery: VideoList | None,
    query: VideoList,
    test: TestClips,
    device: torch.device,
    classify: Classifier | None = None,
    classes: int = 0,
    check: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure a network by all protocols; each video is decoded once.

    Args:
        backbone: On the device.
        protocols: By name.
        gallery: The list of training videos, which is read where a protocol needs it.
        query: The list that is tested.
        test: Which clips and crops.
        device: Where the backbone is.
        classify: The network's own classifier, for protocols that read probabilities.
        classes: How many it has; 0: there is no classifier.
        check: As of `extract`.

    Returns:
        The same on every process; the main one computes the numbers.

    Raises:
        ConfigError: As of `check_measurable`.
        DataError: As of `check_measurable`, or a video cannot be used.
    """
    check_measurable(protocols, gallery, query, classes)
    asking = any(protocol.probabilities for protocol in protocols.values())
    network = _WithProbabilities(backbone, classify, classes) if asking and classify is not None else backbone
    wanted = any(protocol.gallery for protocol in protocols.values())
    g = (
        extract(backbone, gallery, test, device, "gallery", check=check)
        if gallery is not None and wanted
        else None
    )
    both = extract(network, query, test, device, "queries", check=check)
    q, probabilities = (replace(both, x=x) for x in (both.x[:, : backbone.dim], both.x[:, backbone.dim :]))
    queries = query.rows(q.index.tolist())
    galleries = None if gallery is None or g is None else gallery.rows(g.index.tolist())

    def compute() -> dict[str, Measured]:
        own = own_rows(galleries or queries, queries)
        return {
            name: protocol(q if g is None else g, probabilities if protocol.probabilities else q, own)
            for name, protocol in protocols.items()
        }

    return Measurement(distributed.on_main(compute), galleries, queries, g.missing if g else (), q.missing)
