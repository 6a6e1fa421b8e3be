"""The clips and the classifier with which a run is evaluated."""

from vidssl.config import Tree
from vidssl.data.clip_samplers import ClipSettings
from vidssl.engine.config_schema import Run
from vidssl.evaluation.features import FeatureSettings, TestClips
from vidssl.video.reader import DecodeSettings

_NO_LAYER: Tree = {"layer": None, "grid": 1, "grid_frames": 1}


def classes_of(run: Run, test: TestClips) -> int:
    """Number of classes of the run's classifier; 0 if it has none, or one for other features than `test` computes."""
    kind, config = run.objective
    fits = all(getattr(config, name, default) == getattr(test, name) for name, default in _NO_LAYER.items())
    return config.classes if kind.classifies and fits else 0


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
