"""Measure a network: extract the features of lists once, then run every protocol on them."""

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
    """The results of all protocols."""

    found: Mapping[str, Measured]  # by name of the protocol
    gallery: VideoList | None  # the training videos that could be read; None if no protocol needs them
    query: VideoList  # the tested videos that could be read
    missing_gallery: tuple[tuple[str, str], ...]  # path and reason of those that could not
    missing_query: tuple[tuple[str, str], ...]

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers by name."""
        return {name: value for measured in self.found.values() for name, value in measured.numbers.items()}


class _WithProbabilities(Backbone):
    """A backbone that appends class probabilities to its features: both are averaged over views."""

    def __init__(self, backbone: Backbone, classify: Classifier, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.dim = backbone.dim + classes
        self._classify = classify
        self.train(backbone.training)  # extraction restores the mode

    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(x)
        return torch.cat([h.float(), self._classify(h)], dim=1)


def chosen_protocols(
    choices: Sequence[Any] | None, classifies: bool, gallery: VideoList | None, query: VideoList
) -> dict[str, EvaluationProtocol]:
    """Build protocols from their bound configs.

    Without `choices`: accuracy if the network `classifies`, and retrieval, kNN and uniformity if there is a gallery;
    without labels only uniformity.

    Raises:
        ConfigError: A protocol is repeated, or there is none.
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
                f"no protocol can measure {query.path}: accuracy needs a classifier and labels, the others a list of "
                "training videos (--train-list, or evaluate.gallery)"
            )
        return {name: PROTOCOLS[name](PROTOCOLS[name].Config()) for name in names}  # type: ignore[attr-defined]
    built: dict[str, EvaluationProtocol] = {}
    for choice in choices:
        if choice.name in built:
            raise ConfigError(f"protocol {choice.name} is given twice: give each protocol once")
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
    """Run all protocols on a network; each video is decoded once.

    Args:
        backbone: On the device.
        protocols: By name.
        gallery: The list of training videos; its videos are not read if no protocol needs them.
        query: The list that is tested.
        test: Clips and crops.
        device: Device of the backbone.
        classify: The network's own classifier, for protocols that use probabilities.
        classes: Its number of classes; 0: there is no classifier.
        check: As of `extract`.

    Returns:
        The same on every process; the main one computes the numbers. Errors are those of `check_measurable` and
        `extract`.
    """
    check_measurable(protocols, gallery, query, classes)
    asking = any(protocol.probabilities for protocol in protocols.values())
    network = _WithProbabilities(backbone, classify, classes) if asking and classify is not None else backbone
    g, galleries = None, None
    if gallery is not None and any(protocol.gallery for protocol in protocols.values()):
        g = extract(backbone, gallery, test, device, "gallery", check=check)
        galleries = gallery.rows(g.index.tolist())
    both = extract(network, query, test, device, "queries", check=check)
    q, probabilities = (replace(both, x=x) for x in (both.x[:, : backbone.dim], both.x[:, backbone.dim :]))
    queries = query.rows(q.index.tolist())

    def compute() -> dict[str, Measured]:
        own = own_rows(galleries or queries, queries)
        return {
            name: protocol(q if g is None else g, probabilities if protocol.probabilities else q, own)
            for name, protocol in protocols.items()
        }

    return Measurement(distributed.on_main(compute), galleries, queries, g.missing if g else (), q.missing)
