"""Evaluation of a run's backbone during its training, and the encoding of its training list before it."""

import torch
from torch import Tensor, nn

from vidssl.base import distributed
from vidssl.base.command_line_and_notices import noticing
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, naming
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.label_videos import label_videos
from vidssl.data.list_identity import check_copies, identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.run_config import Run
from vidssl.evaluation.features import FeatureSettings, TestClips, encode_videos
from vidssl.evaluation.measure import check_class_names, check_measurable, chosen_protocols, measure, need_gallery
from vidssl.evaluation.train_test_overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.methods.base import Method
from vidssl.models.backbones import Backbone
from vidssl.video.reader import DecodeSettings

_NO_LAYER: Tree = {"layer": None, "grid": 1, "grid_frames": 1}


def classes_of(run: Run, test: TestClips) -> int:
    """Number of classes of the run's classifier; 0 if it has none, or one for other features than `test` computes."""
    kind, config = run.objective
    fits = all(getattr(config, name, default) == getattr(test, name) for name, default in _NO_LAYER.items())
    return config.classes if kind.classifies and fits else 0


def check_layer(run: Run, backbone: Backbone) -> None:
    """Raise a ConfigError if the layer on which a run is evaluated is not there, or its classifier cannot be used."""
    if (layer := evaluation_clips(run).layer) is not None:
        backbone.check_layers((layer,))
    kind, inner = run.objective
    if kind.classifies and inner is not run.method and getattr(inner, "layer", None) and run.evaluate.layer is None:
        stream = backbone.feature_layers[0].partition(".")[0]
        raise ConfigError(
            f"method.method.layer is {inner.layer}, and the probe of a layer is one for all streams: set "
            f"method={{name: {inner.name}, layer: {stream}.{inner.layer}, …}}, or leave layer out"
        )


def evaluation_clips(run: Run) -> TestClips:
    """Return the clips, crops, layer and decoding settings with which a run evaluates its backbone."""
    of = run.evaluate if run.evaluate.layer is not None else run.method
    layer: Tree = {name: getattr(of, name, default) for name, default in _NO_LAYER.items()}
    decoding = {*DecodeSettings.model_fields, "mean", "std", "workers", "timeout"}
    return TestClips(
        clip=ClipSettings(**run.data.sampler.model_dump(include=set(ClipSettings.model_fields))),
        size=run.test_size,
        **run.data.model_dump(include=decoding),
        **{**run.evaluate.model_dump(include={*FeatureSettings.model_fields}), **layer},
    )


class Monitor:
    """Evaluation of a network during its training, with the lists and protocols of `evaluate`.

    They are checked when it is made, against each other and the training list: before hours of training.
    """

    def __init__(self, run: Run, videos: VideoList) -> None:
        where, rule = run.evaluate, (run.data.root, run.data.allow_external)
        assert where.query is not None
        with naming("evaluate.query"):
            self.query = query = label_videos(read_list(where.query, *rule), where.labels).labelled_rows()
        names = None if where.protocols is None else [protocol.name for protocol in where.protocols]
        gallery = None
        if where.gallery is not None and need_gallery(names):
            with naming("evaluate.gallery"):
                gallery = label_videos(read_list(where.gallery, *rule), where.labels).labelled_rows()
        self.gallery = gallery
        if gallery is not None:
            distributed.on_main(lambda: check_copies(gallery.path, identify(gallery), query.path, identify(query)))
        test = evaluation_clips(run)
        self.classes = classes_of(run, test)
        self.protocols = chosen_protocols(where.protocols, self.classes > 0, gallery, query)
        check_measurable(self.protocols, gallery, query, self.classes, test.cells)
        if any(protocol.probabilities for protocol in self.protocols.values()):
            check_class_names(query, videos.classes, f"in {videos.path}")
        compared = gallery if any(protocol.gallery for protocol in self.protocols.values()) else None
        self.overlap = measure_overlap(
            query, compared, lambda: TrainingVideos(str(videos.path), videos, "", videos.fingerprint, identify(videos))
        )
        distributed.on_main(lambda: report_overlap(self.overlap, query.path))

    def measure(self, run: Run, method: Method, device: torch.device, request: StopRequest) -> dict[str, float]:
        """Compute the metrics of a network; the random state of the training is not touched.

        With them are the numbers of tested videos that the gallery or the training list has too, where there are any.
        """
        classify = method.classify if self.classes else None
        test, check = evaluation_clips(run), request.check
        measured = measure(
            method.backbone, self.protocols, self.gallery, self.query, test, device, classify, self.classes, check
        )
        shared = {f"overlap_{name}": (counts or {}).get("videos", 0) for name, counts in self.overlap.items()}
        return {**measured.numbers, **{name: count for name, count in shared.items() if count}}


def encode_list(
    run: Run, videos: VideoList, device: torch.device, request: StopRequest, network: nn.Module
) -> tuple[Tensor, Tensor]:
    """Apply a network to the central clip and crop of each training video; all processes together, as `Encode`.

    Neither the network nor the random state of the training changes. Unreadable videos are logged and left out.
    """
    fixed = {"clips": 1, "crops": 1, "precision": run.precision, "allow_missing": True}
    test = evaluation_clips(run).model_copy(update=fixed)
    with noticing(at_once=True):
        columns, _ = encode_videos(
            network, test.dataset(videos), test, device, lambda _, views: (next(views),), "rows", check=request.check
        )
    index, rows = columns
    return index.to(device), rows.to(device)
