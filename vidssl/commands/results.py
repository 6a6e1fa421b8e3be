"""What a results.json says as a row of a table: what was tested, on which videos, and its numbers."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from vidssl.commands.load import format_count as share
from vidssl.errors import DataError

Kind = Literal["untrained", "features", "linear probe", "finetuned", "from scratch"]

TITLES = {  # of the numbers, in the order of their columns; {} is what stands behind the @
    "top1": "top-1",
    "top5": "top-5",
    "mean_class": "mean of classes",
    "ece": "ECE",
    "knn": "kNN",
    "knn_mean_class": "kNN, mean of classes",
    "svm": "SVM",
    "svm_mean_class": "SVM, mean of classes",
    "lowshot@": "SVM, {} a class",
    "R@": "R@{}",
    "centered_R@": "R@{} centred",
    "chance": "chance",
    "uniformity_loss": "uniformity loss",
}
_WIDTH = 64  # of a backbone that is named without its width


@dataclass(frozen=True)
class Result:
    """A results.json, read.

    Attributes:
        file: Where it is.
        name: Its folder, below the one that was searched.
        content: What is in it.
        data_set: Folder of the list that was tested.
        kind: What was tested.
        method: What features were learned by; None where their training is not known, and of other kinds.
        start: Where the weights come from: the list of the pre-training, the file that training started from, or the
            file of somebody else's weights.
        numbers: For each number its value in each split, as in the file; recall of centred features is `centered_R@k`.
        spread: Of numbers that are means over draws of one split.
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
    def parts(self) -> list[dict[str, Any]]:
        """The splits; what was tested alone is the whole content."""
        return list(self.content["splits"].values()) if "splits" in self.content else [self.content]

    @property
    def learned_by(self) -> str | None:
        """The method with the parts that its config switches on: `moco + jigsaw, 4 views`."""
        if self.method is None:
            return None
        parts = [
            name for name in ("jigsaw", "inter") if at(self.content, f"config.method.{name}") is not None
        ]
        views = at(self.content, "config.data.views")
        many = f", {len(views)} views" if isinstance(views, list) and len(views) > 2 else ""
        return " + ".join([self.method, *parts]) + many

    @property
    def trained_by_others(self) -> bool:
        """Whether the weights are somebody else's: the config then says nothing of their training."""
        return at(self.content, "checkpoint.matched") is not None

    @property
    def backbone(self) -> str | None:
        """Its name, with the width where that is not the usual one."""
        name, width = at(self.content, "config.backbone.name"), at(self.content, "config.backbone.width")
        return name if name is None or width in (None, _WIDTH) else f"{name}, width {width}"

    @property
    def frames(self) -> int | None:
        """Of a clip."""
        return _whole(at(self.content, "protocol.clip.frames"))

    @property
    def test_size(self) -> int | None:
        """Side of the crops that were tested, pixels."""
        return _whole(at(self.content, "protocol.size"))

    @property
    def size(self) -> int | None:
        """Side of the training views, pixels; of what was not trained here that of the crops."""
        if self.kind == "untrained" or self.trained_by_others:
            return self.test_size
        return _whole(at(self.content, "config.data.views.0.size"))

    @property
    def subset(self) -> dict[str, Any] | None:
        """Which part of the labels was learned from; None: all."""
        subset = at(self.content, "config.data.subset")
        return {k: v for k, v in subset.items() if k != "seed" and v is not None} if subset else None

    @property
    def tested(self) -> list[int]:
        """Videos of each split that were tested, where that is known."""
        return self._counts("num_videos", "num_queries")

    def videos(self) -> str:
        """Say how many videos were tested and compared with, and of how many where some are missing."""
        sides = []
        for counts, names in (
            (self.tested, ("missing", "missing_queries")),
            (self._counts("num_train", "num_gallery"), ("missing_train", "missing_gallery")),
        ):
            missing = [video for name in names for video in self.content.get(name) or ()]
            if counts:
                same = len({*counts}) == 1
                sides.append(share(counts[0], missing) if same else f"{min(counts)} to {max(counts)}")
        text = " / ".join(sides) or "–"
        if "splits" not in self.content:
            return text
        every = all({"num_videos", "num_queries"} & part.keys() for part in self.parts)
        if len(self.parts) == 1:
            return f"{text}, 1 split"
        return f"{text}{'' if every else ' in the first'}, {len(self.parts)} splits"

    def _counts(self, *names: str) -> list[int]:
        """Look in each split, and where it says nothing in the whole."""
        found = [
            next(
                (n for name in names if (n := _whole(part.get(name, self.content.get(name)))) is not None),
                None,
            )
            for part in self.parts
        ]
        return [count for count in found if count is not None]


def read_results(folders: Sequence[Path]) -> list[Result]:
    """Read every results.json below folders that has a number with a column.

    Those of single splits are left out where one over several splits holds them.

    Raises:
        DataError: A folder is not there, or a file is no result.
    """
    found: dict[Path, Result] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; name folders that hold results.json")
        over_splits: set[Path] = set()
        for file in sorted(folder.rglob("results.json"), key=lambda path: path.parent.parts):
            if over_splits & {*file.parents}:
                continue
            below = file.parent.relative_to(folder).as_posix()
            result = _read(file, folder.resolve().name if below == "." else below)
            if "splits" in result.content:
                over_splits.add(file.parent)
            if result.numbers:  # an analysis has none that stand in a table of accuracies
                found.setdefault(file.resolve(), result)
    return list(found.values())


def column(name: str) -> tuple[int, int] | None:
    """Where the column of a number stands among others; None where it has none."""
    prefix, sign, number = name.partition("@")
    if prefix + sign not in TITLES or bool(sign) != number.isdigit():
        return None
    return [*TITLES].index(prefix + sign), int(number or 0)


def data_set_of(path: str) -> str:
    """Name the data set of a list by its folder: that of x/test1.csv, x/split1/test.csv and x-1/test.csv is x."""
    split = r"(split[-_]?)?\d{1,2}|(split[-_]?)?\{split\}"
    for folder in reversed(Path(path).parent.parts):
        if not re.fullmatch(split, folder):
            return re.sub(rf"([-_]|(?=\{{))({split})$", "", folder)
    return Path(path).stem


def at(content: Any, path: str) -> Any:
    """Find what stands at a dotted path, in which a number is a place in a list; None where nothing does."""
    for part in path.split("."):
        if isinstance(content, list) and part.isdigit() and int(part) < len(content):
            content = content[int(part)]
        elif isinstance(content, dict):
            content = content.get(part)
        else:
            return None
    return content


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of a JSON file is a number: true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read(file: Path, name: str) -> Result:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise DataError(f"{file} is no result: it is not JSON; measure again, or remove it") from None
    if isinstance(content, dict) and isinstance(content.get("splits"), dict):
        first = next(iter(content["splits"].values()), None)
        if isinstance(first, dict):  # what each split has its own of is told by the first
            content = {**first, **content}
    tested = content.get("list", content.get("query")) if isinstance(content, dict) else None
    if not isinstance(tested, str):
        raise DataError(
            f"{file} is no result: it names no tested list, 'list' or 'query'; give folders that tools/test_net.py or "
            "tools/retrieval.py wrote"
        )
    splits = content.get("splits", {"": content})
    if (
        not isinstance(splits, dict)
        or not splits
        or not all(isinstance(part, dict) for part in splits.values())
    ):
        raise DataError(
            f"{file} is no result: 'splits' does not hold the numbers of each split; measure again"
        )
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
    """Whether the recall that comes first is that of centred features."""
    protocols = content.get("protocols") or ()
    return bool(content.get("centered")) or any(
        at(protocol, "name") == "retrieval" and bool(at(protocol, "center")) for protocol in protocols
    )


def _numbers(part: dict[str, Any], centered: bool, file: Path) -> dict[str, float]:
    """Collect the numbers that have a column."""
    first, second = ("centered_", "") if centered else ("", "centered_")
    other = at(part, "uncentered" if centered else "centered_features") or {}
    found = {(first if name.startswith("R@") else "") + name: value for name, value in part.items()}
    found |= {second + name: value for name, value in other.items() if name.startswith("R@")}
    found = {name: value for name, value in found.items() if column(name) is not None}
    for name, value in found.items():
        if not is_number(value):
            raise DataError(
                f"{file} is no result: {name} is {json.dumps(value)[:40]}, not a number; measure again"
            )
    return found


def _origin(content: dict[str, Any]) -> tuple[Kind, str | None, str | None]:
    """Tell what was tested, by which method features were learned, and what the weights come from."""
    method, init = at(content, "config.method.name"), at(content, "config.init")
    init = at(init, "file") if isinstance(init, dict) else init
    weights = at(content, "checkpoint.path")
    if weights == "random":
        return "untrained", None, None
    if at(content, "checkpoint.matched") is not None:
        return "features", None, weights
    if method != "supervised":
        return "features", method, at(content, "config.data.train")
    if at(content, "config.method.freeze"):
        return "linear probe", None, init
    return ("from scratch" if init is None else "finetuned"), None, init
