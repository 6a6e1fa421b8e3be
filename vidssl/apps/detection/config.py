"""The configs of runs of detectors: of objects in images, and of actions in videos."""

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from vidssl.base.config import Settings, Tree, bind, choice
from vidssl.base.errors import ConfigError
from vidssl.base.plugins import stored_imports
from vidssl.base.registry import load_named
from vidssl.engine.run_config import RunSettings, run_kind
from vidssl.models.backbones import BACKBONES
from vidssl.transforms.recipes import TrainCrop
from vidssl.video.reader import DecodeSettings

_Lists = str | Annotated[tuple[str, ...], Field(min_length=1)]  # a list (JSON), or several of the same classes


class ReadSettings(Settings):
    """Where images or videos are, and how batches of them are made."""

    root: str | None = None  # folder of the images or videos; overrides root.txt of the lists
    workers: int = Field(default=2, ge=0)
    timeout: float = Field(default=120.0, gt=0)  # seconds for one of them; after a second timeout the run stops
    mean: tuple[float, ...] = (0.45,)  # of pixels in [0, 1]; one value, or one per channel
    std: tuple[float, ...] = (0.225,)


class ImageSettings(ReadSettings):
    """How images are read, in training and in tests."""

    max_side: int = Field(default=1333, ge=32)  # pixels; images whose longer side would exceed it are made smaller


class DetectionData(ImageSettings):
    """Which images a detector is trained on."""

    train: _Lists
    # The short side of each image is drawn from these, pixels.
    short_sides: Annotated[tuple[Annotated[int, Field(ge=32)], ...], Field(min_length=1)]
    flip: float = Field(default=0.5, ge=0, le=1)  # probability of a mirror image


class DetectionEvaluate(Settings):
    """The list that a detector is tested on, at the end and with `every` also before."""

    list: str | None = None  # JSON; None: no test
    short_side: int = Field(default=800, ge=32)  # pixels
    batch_size: int = Field(default=1, ge=1)  # images at a time, of each process
    every: int | None = Field(default=None, ge=1)  # steps


class DetectorSettings(Settings):
    """Settings of a detector of objects."""

    # c4: proposals and regions from the third stage; the fourth encodes each region. fpn: a feature pyramid.
    name: Literal["c4", "fpn"]
    masks: bool = False  # also predict a mask of each object: the list needs outlines
    anchor: int = Field(default=32, ge=1)  # side of the smallest of five anchors in pixels, each twice the last
    width: int = Field(default=256, ge=8)  # fpn: channels of the pyramid; the box head has four times as many
    regions: int = Field(default=512, ge=1)  # of an image, that the box head is trained on
    proposals: int = Field(default=1000, ge=1)  # of an image in tests: each is classified


class KeyFrameSettings(ReadSettings, DecodeSettings):
    """How the clips around key frames are read, in training and in tests."""

    frames: int = Field(ge=1)  # of a clip
    seconds: float = Field(gt=0)  # of a clip, which is centred on its key frame; SlowFast's 8 x 8 is 64 / 30


class ActionData(KeyFrameSettings):
    """Which key frames a detector of actions is trained on, and what it sees of them."""

    train: _Lists
    view: TrainCrop.Config = TrainCrop.Config()


class ActionEvaluate(DetectionEvaluate):
    """The list that a detector of actions is tested on; the whole frames are seen."""

    short_side: int = Field(default=256, ge=32)  # pixels


class ActionDetectorSettings(Settings):
    """Settings of a detector of actions."""

    dropout: float = Field(default=0.5, ge=0, lt=1)  # before the classifier


class DetectionRun(RunSettings):
    """A run of a detector on images with boxes: the config has `detector` instead of `method`."""

    data: DetectionData
    detector: DetectorSettings
    evaluate: DetectionEvaluate = DetectionEvaluate()


class ActionRun(RunSettings):
    """A run of a detector of actions on key frames of videos: the config has `action_detector` instead of `method`."""

    data: ActionData
    action_detector: ActionDetectorSettings
    evaluate: ActionEvaluate = ActionEvaluate()

    @property
    def decoder(self) -> str:
        """What decodes its videos."""
        return self.data.backend


AnyDetectionRun = DetectionRun | ActionRun
_KINDS: dict[str, type[DetectionRun | ActionRun]] = {"detector": DetectionRun, "action_detector": ActionRun}


def bind_run(tree: Tree, source: str) -> AnyDetectionRun:
    """Bind a config that a user passes, after importing the modules of `imports`; all mistakes are one ConfigError."""
    return bind_stored(tree, source, trust=True)


def bind_stored(tree: Any, source: str, trust: bool = False) -> AnyDetectionRun:
    """Bind a config that lies in a file of weights; as `stored_imports`."""
    with stored_imports(tree, source, trust):
        return _bind(tree, source)


def _bind(tree: Tree, source: str) -> AnyDetectionRun:
    kind = run_kind(tree, source)
    if kind not in _KINDS:
        raise ConfigError(f"{source} has no detector, which a list of boxes needs: choose a checkpoint of one")
    load_named(tree)
    parts: Any = {"backbone": (choice(BACKBONES), ...)}  # all that are registered so far
    schema: type[AnyDetectionRun] = create_model(_KINDS[kind].__name__, __base__=_KINDS[kind], **parts)
    return bind(schema, tree, source)
