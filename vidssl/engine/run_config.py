"""The config of a run: all settings of a config file, and those that runs of every kind have."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag, create_model, model_validator

from vidssl.base.config import STANDS_FOR, Settings, Tree, bind, choice, read
from vidssl.base.errors import ConfigError
from vidssl.base.plugins import stored_imports
from vidssl.base.registry import APPS, load_named
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.data.moving_digits import MovingDigits
from vidssl.data.video_list import Subset
from vidssl.engine.optim import OptimizerConfig
from vidssl.evaluation.features import FeatureSettings
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import BACKBONES
from vidssl.models.match_checkpoints import Initial
from vidssl.tracking import TrackerSettings
from vidssl.transforms import RECIPES
from vidssl.transforms.gamma_and_shuffles import Distortion
from vidssl.transforms.recipes import DrawnRecipe, check_short_side
from vidssl.video.reader import DecodeSettings

SyncBN = Literal["auto", "sync", "shuffle", "local"]


class Checkpoints(Settings):
    """When the run is saved; the last step always is."""

    every: int = Field(default=1000, ge=1)  # steps
    keep: int = Field(default=2, ge=2)  # older ones are deleted
    # If a checkpoint or a line of the log cannot be written, `stop` ends the run, `continue` warns. If the last
    # checkpoint cannot be written, the run always ends with an error.
    on_error: Literal["stop", "continue"] = "stop"
    trust: bool = False  # load checkpoints that hold objects, which can run code
    changed_code: bool = False  # continue a run although the code of its `imports` was changed; the log has the step


class RunSettings(Settings):
    """What the configs of all runs have. Fields of type `Any` get theirs from the registries, see `schema`."""

    imports: tuple[str, ...] = ()  # your modules that register methods, backbones, samplers, recipes or protocols
    output: str
    seed: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    deterministic: bool = False  # bit-exact on a GPU too; slower
    sync_bn: SyncBN = "auto"  # batch norm with several processes, see `set_batch_norm`
    verify_every: int | None = Field(default=None, ge=1)  # steps between comparisons of the state of all processes
    epochs: float | None = Field(default=None, gt=0)  # length of the run: set either epochs or steps
    steps: int | None = Field(default=None, ge=1)
    init: Initial | None = None  # file of initial weights of the backbone
    batch_size: int = Field(ge=1)  # global
    micro_batch_size: int | None = Field(default=None, ge=1)  # of one process; None: no gradient accumulation
    backbone: Any
    optimizer: OptimizerConfig
    checkpoint: Checkpoints = Checkpoints()
    log_every: int = Field(default=10, ge=1)  # steps

    @model_validator(mode="after")
    def _has_length(self) -> "RunSettings":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("set exactly one of epochs and steps")
        return self

    @property
    def decoder(self) -> str | None:
        """What decodes its videos, one of the backends; its version is saved. None: it is trained on images."""
        return None

    def total_steps(self, samples_per_epoch: int) -> int:
        """Length of the run in optimizer steps."""
        return self.steps or max(1, round((self.epochs or 0) * samples_per_epoch / self.batch_size))


class RenderedDigits(MovingDigits):
    """Synthetic videos of moving digits, rendered into the folder `out` if it is missing."""

    out: str


class TrainList(Settings):
    """One of several training lists."""

    list: str  # CSV
    root: str | None = None  # folder of its videos; None: `data.root`, else its root.txt
    weight: float = Field(default=1.0, gt=0, le=10_000)  # an epoch uses each of its videos so many times

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"list": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Tree:
        return {"anyOf": [{"type": "string"}, handler(core)]}


# The tags choose the type whose mistakes are reported.
TrainLists = Annotated[
    Annotated[str, Tag("path")] | Annotated[tuple[TrainList, ...], Field(min_length=1), Tag("lists")],
    Discriminator(lambda value: "lists" if isinstance(value, list | tuple | dict) else "path"),
]


class Data(DecodeSettings):
    """Which videos, clips and views a run trains on."""

    model_config = ConfigDict(
        json_schema_extra={
            "required": ["sampler", "views"],
            "anyOf": [{"required": ["lists"]}, {"required": ["train"]}],
        }
    )
    # Folder with train.csv and test.csv: train, evaluate.gallery and evaluate.query where these are not set.
    lists: str | None = Field(default=None, min_length=1, exclude=True)
    train: TrainLists  # a list (CSV), or several: paths, or `list` with `root` and `weight`
    subset: Subset | None = None  # train on a class-balanced part of each list
    root: str | None = None  # folder of the videos; overrides root.txt of the lists
    allow_external: bool = False  # accept paths outside of the root
    moving_digits: RenderedDigits | None = None  # synthetic videos, rendered if missing
    workers: int = Field(default=2, ge=0)
    timeout: float = Field(default=120.0, gt=0)  # seconds for decoding one video; after a second timeout it is broken
    # Fraction of the videos that may be broken, but at least one unless it is 0; with more the run stops.
    max_broken: float = Field(default=0.05, ge=0, le=1)
    mean: tuple[float, ...] = (0.45,)  # of pixels in [0, 1]; one value, or one per channel
    std: tuple[float, ...] = (0.225,)
    augment: Literal["cpu", "device"] = "cpu"  # where the operations of recipes after their crop run
    sampler: Any
    views: Any

    @model_validator(mode="after")
    def _can_augment(self) -> "Data":
        if self.augment == "device":
            kinds = [RECIPES[view.name] for view in self.views]
            drawn = [issubclass(kind, DrawnRecipe) and kind.leaves_operations() for kind in kinds]
            if not any(drawn):
                names = ", ".join(sorted({view.name for view in self.views}))
                raise ValueError(f"augment: device has no operation to run in {names}: set data.augment=cpu")
            for number, (view, kind) in enumerate(zip(self.views, kinds, strict=True)):
                if drawn[number] and getattr(view, "distortion", kind.distortion) != Distortion():
                    raise ValueError(f"augment: device cannot run views.{number}.distortion: set data.augment=cpu")
        return self

    @property
    def train_lists(self) -> tuple[TrainList, ...]:
        """The training lists, one or several."""
        return (TrainList(list=self.train),) if isinstance(self.train, str) else self.train


class Evaluate(FeatureSettings):
    """Clips and protocols of evaluation; with `every`, also evaluation during training."""

    size: int | None = Field(default=None, ge=1)  # side of the crops in pixels; None: that of the first view
    every: int | None = Field(default=None, ge=1)  # steps
    gallery: str | None = None  # list of the training videos that protocols compare with or fit on
    query: str | None = None  # list of the videos that are evaluated
    labels: str | None = None  # of these, else of the training videos: as `vidssl test --labels`
    protocols: Any = None  # None: see `chosen_protocols`
    # Encoder or sum of encoders that `training.html` sets beside the network, also joined with it; None: none.
    beside: str | None = "vidssl-default"

    @model_validator(mode="after")
    def _has_list(self) -> "Evaluate":
        if self.every is not None and self.query is None:
            raise ValueError("every needs the list query, and most protocols a gallery")
        return self


class TrackFiles(Settings):
    """Regions tracked through the training videos; patch pairs are drawn from them."""

    folder: str | None = None  # written by `vidssl track`
    # Epochs after which the target network tracks the videos again; without `folder` also before the first step.
    refresh: float | None = Field(default=None, gt=0)
    tracker: TrackerSettings = TrackerSettings()  # for `refresh`

    @model_validator(mode="after")
    def _has_source(self) -> "TrackFiles":
        if self.folder is None and self.refresh is None:
            raise ValueError("set folder (written by `vidssl track`), refresh, or both")
        return self


class Run(RunSettings):
    """A run of a method on videos. `schema` adds what plug-ins register."""

    compile: bool = False  # torch.compile of the backbone and the target backbone
    tracks: TrackFiles | None = None  # None: no patch pairs
    data: Data
    method: Any
    evaluate: Evaluate = Evaluate()

    @model_validator(mode="after")
    def _is_consistent(self) -> "Run":
        check_short_side(self.test_size, self.evaluate.short_side)
        return self

    @property
    def objective(self) -> tuple[type[Method], Any]:
        """Class and config of the method that is applied to clips: the inner one, if `method` holds another."""
        return METHODS[self.method.name].innermost(self.method)

    @property
    def method_in_words(self) -> str:
        """Name of the method, with that which it holds: `two_streams of sce`."""
        inner = self.objective[1]
        return str(self.method.name) if inner is self.method else f"{self.method.name} of {inner.name}"

    @property
    def decoder(self) -> str:
        """What decodes its videos."""
        return self.data.backend

    @property
    def test_size(self) -> int:
        """Side of the crops for evaluation, in pixels."""
        return int(self.evaluate.size or self.data.views[0].size)


def run_schema() -> type[Run]:
    """Make the type of a run, with all methods, backbones, samplers, recipes and protocols registered so far.

    The first call imports the modules of five packages. Plug-ins may register more later, which makes a new class.
    """
    registries = (RECIPES, PROTOCOLS, SAMPLERS, BACKBONES, METHODS)
    return _schema_of(tuple(tuple(registry.loaded.items()) for registry in registries))


@lru_cache(maxsize=8)
def _schema_of(entries: tuple[tuple[tuple[str, Any], ...], ...]) -> type[Run]:  # which decide what `choice` makes
    recipe, protocol = choice(RECIPES), choice(PROTOCOLS)
    views = Annotated[tuple[recipe, ...], Field(min_length=1)]  # type: ignore[valid-type]
    protocols = Annotated[tuple[protocol, ...], Field(min_length=1)]  # type: ignore[valid-type]
    data = create_model("Data", __base__=Data, sampler=(choice(SAMPLERS), ...), views=(views, ...))
    evaluate = create_model("Evaluate", __base__=Evaluate, protocols=(protocols | None, None))
    parts: Any = {"data": (data, ...), "backbone": (choice(BACKBONES), ...), "method": (choice(METHODS), ...)}
    return create_model("Run", __base__=Run, evaluate=(evaluate, evaluate()), **parts)


def load_run(path: str | Path, overrides: Sequence[str] = (), split: int | None = None) -> Run:
    """Read a config file with overrides and bind it.

    With `split` that number replaces `{split}`, which `data` or `seed` must contain, and the output becomes
    `OUTPUT/splitN`. All mistakes are one ConfigError.
    """
    tree = read(path, overrides)
    if split is None:
        if names_split([tree, *overrides]):
            raise ConfigError(f"{path} is for several splits: its texts hold {{split}}; name them: splits=[1, 2, 3]")
        return bind_run(tree, str(path))
    return bind_split(tree, read(path, fill_split([*overrides], split)), split, str(path))


def bind_split(tree: Tree, of_split: Tree, split: int, source: str) -> Run:
    """Bind a config for one split, as `load_run` does: `tree` as it is, `of_split` with its settings filled in."""
    filled = fill_split(of_split, split)
    if tree.get("seed") == "{split}":  # a text in YAML and Python, a number only after this
        filled["seed"] = split
    changed = [key for key in tree if filled.get(key) != tree[key]]
    if "data" not in changed and "seed" not in changed:
        raise ConfigError(f"all splits of {source} are the same: name {{split}} in data.lists, data.train or seed")
    if "output" in changed:
        raise ConfigError(f"output of {source} names {{split}}: leave it out, each split has its own folder anyway")
    if isinstance(filled.get("output"), str):  # else bind_run reports it
        filled["output"] += f"/split{split}"
    return bind_run(filled, source)


def fill_split(value: Any, split: int) -> Any:
    """Put the number of a split for `{split}` in all texts and paths."""
    if isinstance(value, dict):
        return {name: fill_split(entry, split) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(fill_split(entry, split) for entry in value)
    return type(value)(str(value).replace("{split}", str(split))) if isinstance(value, str | Path) else value


def names_split(value: Any) -> bool:
    """Whether a text or path in a tree holds `{split}`."""
    return bool(fill_split(value, 0) != value)


def bind_run(tree: Tree, source: str) -> Run:
    """Bind a config that a user passes to the schema of a run, after importing the modules of `imports`."""
    return bind_stored(_with_lists(tree), source, trust=True)


def _with_lists(tree: Tree) -> Tree:
    """Add the settings that `data.lists` stands for to a config; those that it has remain."""
    data = tree.get("data")
    if isinstance(data, dict) and isinstance(folder := data.get("lists"), str):
        for (section, key), text in STANDS_FOR["data.lists"].items():
            if isinstance(settings := tree.get(section, {}), dict):
                tree = {**tree, section: {key: text.format(folder), **settings}}
    return tree


def bind_stored(tree: Any, source: str, trust: bool = False) -> Run:
    """Bind a config that lies in a file of weights; as `stored_imports`."""
    with stored_imports(tree, source, trust):
        return _bind(tree, source)


def run_kind(tree: Tree, source: str) -> str:
    """Return the key that names what a config trains: `method`, or one of an app, see `APPS`."""
    kinds = [key for key in ("method", *APPS["run"]) if key in tree]
    if len(kinds) > 1:
        raise ConfigError(f"{source}: set one of {' and '.join(kinds)}: they are different runs")
    return kinds[0] if kinds else "method"


def _bind(tree: Tree, source: str) -> Run:
    kind = run_kind(tree, source)
    if kind != "method":
        raise ConfigError(
            f"{source} has {kind} instead of method: it works with vidssl train, launch and test, for one split; its "
            "backbone with init and vidssl.load_backbone"
        )
    load_named(tree)
    return bind(run_schema(), tree, source)


def bfloat16_is_emulated(device: torch.device) -> bool:
    """Whether the device is a CPU without AVX-512, where a step in bfloat16 takes about 20 times as long."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
