"""Reads results.json files for the report: what was tested, on which videos, and the numbers."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from vidssl.base.errors import DataError

Kind = Literal["floor", "untrained", "features", "linear probe", "finetuned", "from scratch"]

TITLES = {  # of the numbers, in the order of their columns; {} is the part after the @
    "top1": "top-1",
    "top5": "top-5",
    "mean_class": "mean of classes",
    "ece": "ECE",
    "knn": "kNN",
    "knn_mean_class": "kNN, mean of classes",
    "svm": "SVM",
    "svm_mean_class": "SVM, mean of classes",
    "lowshot@": "SVM, {} per class",
    "R@": "R@{}",
    "centered_R@": "R@{} centred",
    "chance": "chance",
    "majority": "majority",
    "uniformity_loss": "uniformity loss",
}
_USUAL_WIDTH = 64


@dataclass(frozen=True)
class Result:
    """The content of one results.json.

    Attributes:
        file: Its path.
        name: Its folder, relative to the searched one.
        content: The parsed JSON. With several splits, keys that only the splits have are those of the first.
        data_set: Folder of the tested list.
        kind: What was tested.
        method: Method that learned the features, or the name of an encoder or floor that was tested by its name; None
            for other kinds and third-party weights.
        start: Origin of the weights: the pre-training list, the `init` file, or the file of third-party weights.
        numbers: For each number its value in each split. Recall of centred features is `centered_R@k`.
        spread: Standard deviation of numbers that are means over draws of one split.
    """

    file: Path
    name: str
    content: dict[str, Any]
    data_set: str
    kind: Kind
    method: str | None
    start: str | None
    numbers: dict[str, list[float]]
    spread: dict[str, float]

    @property
    def splits(self) -> list[dict[str, Any]]:
        """Content of each split; a single test is one split."""
        return list(self.content["splits"].values()) if "splits" in self.content else [self.content]

    @property
    def learned_by(self) -> str | None:
        """The method with its optional branches and its views: `moco + jigsaw, 4 views`."""
        if self.method is None:
            return None
        branches = [b for b in ("jigsaw", "inter") if at(self.content, f"config.method.{b}") is not None]
        views = at(self.content, "config.data.views")
        suffix = f", {len(views)} views" if isinstance(views, list) and len(views) > 2 else ""
        return " + ".join([self.method, *branches]) + suffix

    @property
    def third_party(self) -> bool:
        """Whether the weights come from another project, so that the config does not describe their training."""
        return at(self.content, "checkpoint.matched") is not None

    @property
    def backbone(self) -> str | None:
        """Name of the backbone, with its width unless that is 64, and what it encodes unless these are frames."""
        name, width = at(self.content, "config.backbone.name"), at(self.content, "config.backbone.width")
        parts = [] if width in (None, _USUAL_WIDTH) else [f"width {width}"]
        parts += ["differences"] if at(self.content, "config.backbone.frame_differences") else []
        return name if name is None else ", ".join([name, *parts])

    @property
    def frames(self) -> int | None:
        """Frames of a clip."""
        return _whole(at(self.content, "protocol.clip.frames"))

    @property
    def test_size(self) -> int | None:
        """Side of the tested crops, pixels."""
        return _whole(at(self.content, "protocol.size"))

    @property
    def size(self) -> int | None:
        """Side of the training views, pixels; without a training of vidssl, side of the tested crops."""
        if self.kind == "untrained" or self.third_party:
            return self.test_size
        return _whole(at(self.content, "config.data.views.0.size"))

    @property
    def views(self) -> str | None:
        """Number of clips and crops of a tested video, `10 x 3`."""
        clips, crops = (_whole(at(self.content, f"protocol.{name}")) for name in ("clips", "crops"))
        return None if clips is None or crops is None else f"{clips} x {crops}"

    @property
    def steps(self) -> str | None:
        """Number of steps of the training that ended with the weights, that of the first split; None: not trained."""
        step = _whole(at(self.content, "checkpoint.step"))
        return None if step is None else f"{step:,}"

    @property
    def varied(self) -> str | None:
        """What varies between several numbers: `3 splits x 2 seeds`; splits of the same lists are seeds."""
        if "splits" not in self.content:
            return None
        lists = {(split.get("list"), split.get("train_list")) for split in self.splits}
        same_lists = len(lists) == 1 < len(self.splits) and next(iter(lists))[0] is not None
        words = f"{len(self.splits)} {'seed' if same_lists else 'split'}{'s' * (len(self.splits) > 1)}"
        if seeds := self.content.get("seeds"):
            return f"{words} x {len(seeds)} seed{'s' * (len(seeds) > 1)}"
        # Results of before `command` was stated have the seed of the first split only.
        command, first_split = self.content.get("command"), next(iter(self.content["splits"]))
        seeded = "seed={split}" in command if command else str(at(self.content, "config.seed")) == first_split
        seeded = seeded and not same_lists and len(self.splits) > 1
        return words + (", a seed each" if seeded else "")

    @property
    def subset(self) -> dict[str, Any] | None:
        """Subset of the labels that was used for training; None: all."""
        subset = at(self.content, "config.data.subset")
        return {k: v for k, v in subset.items() if k != "seed" and v is not None} if subset else None

    @property
    def tested(self) -> list[int]:
        """Number of tested videos of each split, where it is known."""
        return self._counts("num_videos", "num_queries")

    def videos(self) -> str:
        """Numbers of tested and training videos, with those that are missing."""
        sides = []
        for counts, names in (
            (self.tested, ("missing", "missing_queries")),
            (self._counts("num_train", "num_gallery"), ("missing_train", "missing_gallery")),
        ):
            missing = sum(len(self.content.get(name) or ()) for name in names)
            if not counts:
                continue
            if len({*counts}) > 1:
                sides.append(f"{min(counts)} to {max(counts)}")
            else:
                total = f" of {counts[0] + missing} ({missing} missing)" if missing else ""
                sides.append(f"{counts[0]}{total}")
        text = " / ".join(sides) or "–"
        if self.varied is None:
            return text
        counted = all({"num_videos", "num_queries"} & split.keys() for split in self.splits)
        return f"{text}{'' if counted or len(self.splits) == 1 else ' in the first'}, {self.varied}"

    def _counts(self, *names: str) -> list[int]:
        """The first of these numbers that each split has, or that the whole has."""
        counts = (
            next((n for name in names if (n := _whole(split.get(name, self.content.get(name)))) is not None), None)
            for split in self.splits
        )
        return [count for count in counts if count is not None]


def read_results(folders: Sequence[Path]) -> list[Result]:
    """Read every results.json below the folders that has a number with a column.

    Files of single splits are skipped where a file above them holds all splits.

    Raises:
        DataError: A folder is missing, or a file is not a result.
    """
    results: dict[Path, Result] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; name folders that hold results.json")
        over_splits: set[Path] = set()
        for file in sorted(folder.rglob("results.json"), key=lambda path: path.parent.parts):
            if over_splits & {*file.parents}:
                continue
            relative = file.parent.relative_to(folder).as_posix()
            result = _read(file, folder.resolve().name if relative == "." else relative)
            if "splits" in result.content:
                over_splits.add(file.parent)
            if result.numbers:  # results of an analysis have no number for these tables
                results.setdefault(file.resolve(), result)
    return list(results.values())


def column_order(name: str) -> tuple[int, int] | None:
    """Sort key of the column of a number; None if it has no column."""
    prefix, sign, number = name.partition("@")
    if prefix + sign not in TITLES or bool(sign) != number.isdigit():
        return None
    return [*TITLES].index(prefix + sign), int(number or 0)


def data_set_of(path: str) -> str:
    """Data set of a list by its folder: x for x/test1.csv and x-1/test.csv, x_6 for x_6/split1/test.csv."""
    split = r"(split[-_]?)?\d{1,2}|(split[-_]?)?\{split\}"
    for depth, folder in enumerate(reversed(Path(path).parent.parts)):
        if not re.fullmatch(split, folder):
            return folder if depth else re.sub(rf"([-_]|(?=\{{))({split})$", "", folder)
    return Path(path).stem


def at(content: Any, path: str) -> Any:
    """Value at a dotted path, in which a number indexes a list; None if there is none."""
    for part in path.split("."):
        if isinstance(content, list) and part.isdigit() and int(part) < len(content):
            content = content[int(part)]
        elif isinstance(content, dict):
            content = content.get(part)
        else:
            return None
    return content


def is_number(value: object) -> TypeGuard[float]:
    """Whether a JSON value is a number (a bool is not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read(file: Path, name: str) -> Result:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(f"{file} is not a result: not JSON") from None
    splits = content.get("splits", {"": content}) if isinstance(content, dict) else {}
    if isinstance(content, dict) and "splits" in content:
        if not isinstance(splits, dict) or not splits or not all(isinstance(s, dict) for s in splits.values()):
            raise DataError(f"{file} is not a result: 'splits' does not hold the numbers of each split")
        content = {**next(iter(splits.values())), **content}
    tested = content.get("list", content.get("query")) if isinstance(content, dict) else None
    if not isinstance(tested, str):
        raise DataError(f"{file} is not a result: it names no tested list ('list' or 'query')")
    numbers = [_numbers(part, _centered(content), file) for part in splits.values()]
    kind, method, start = _origin(content)
    spread = {name: content.get(f"{name}_spread") for name in numbers[0]} if len(numbers) == 1 else {}
    return Result(
        file=file,
        name=name,
        content=content,
        data_set=data_set_of(tested),
        kind=kind,
        method=method,
        start=start,
        numbers={n: [part[n] for part in numbers] for n in numbers[0] if all(n in part for part in numbers)},
        spread={name: value for name, value in spread.items() if is_number(value)},
    )


def _centered(content: dict[str, Any]) -> bool:
    """Whether `R@k` at the top level is the recall of centred features."""
    protocols = content.get("protocols") or ()
    return bool(content.get("centered")) or any(
        at(protocol, "name") == "retrieval" and bool(at(protocol, "center")) for protocol in protocols
    )


def _numbers(part: dict[str, Any], centered: bool, file: Path) -> dict[str, float]:
    """Numbers that have a column."""
    prefix, nested_prefix = ("centered_", "") if centered else ("", "centered_")
    nested = at(part, "uncentered" if centered else "centered_features") or {}
    numbers = {(prefix if name.startswith("R@") else "") + name: value for name, value in part.items()}
    numbers |= {nested_prefix + name: value for name, value in nested.items() if name.startswith("R@")}
    numbers = {name: value for name, value in numbers.items() if column_order(name) is not None}
    for name, value in numbers.items():
        if not is_number(value):
            raise DataError(f"{file} is not a result: {name} is {json.dumps(value)[:40]}, not a number")
    return numbers


def _origin(content: dict[str, Any]) -> tuple[Kind, str | None, str | None]:
    """What was tested, the method that learned the features, and the origin of the weights."""
    method, init = at(content, "config.method.name"), at(content, "config.init")
    init = at(init, "file") if isinstance(init, dict) else init
    weights = at(content, "checkpoint.path")
    if weights == "random":
        return "untrained", None, None
    if weights is not None and "config" in content and content["config"] is None:  # named, not a file
        floor = weights.startswith("floor:") and "+" not in weights
        return ("floor", weights.removeprefix("floor:"), None) if floor else ("features", weights, None)
    if at(content, "checkpoint.matched") is not None:
        return "features", None, weights
    if method != "supervised":
        train = at(content, "config.data.train")
        if isinstance(train, list):
            train = "+".join(data_set_of(part["list"]) for part in train)
        return "features", method, train
    if at(content, "config.method.freeze"):
        return "linear probe", None, init
    return ("from scratch" if init is None else "finetuned"), None, init
