"""The clips and the classifier with which a run is evaluated."""

from vidssl.config import Tree
from vidssl.data.clip_samplers import ClipSettings
from vidssl.engine.config_schema import Run
from vidssl.errors import ConfigError
from vidssl.evaluation.features import FeatureSettings, TestClips
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
