"""Results of one data set beside the published numbers: which belong together, and in which settings they differ."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

from references import DataSet, Entry, References
from results import TITLES, Kind, Result, at, column_order, data_set_of, is_number
from tables import Row, Table

_KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order of their rows
_EMPTY = "–"
# Columns that a table has where its rows differ.
_SETTINGS: dict[str, Callable[[Result], str | None]] = {
    "test clips x crops": lambda result: result.views,
    "steps": lambda result: result.steps,
}


def make_table(key: str, references: References, results: Sequence[Result]) -> Table:
    """Table of one data set: what was measured, what was not run, what was published.

    A published row stands below the last result of the config that reproduces it.

    Args:
        key: Of the data set, see `References.key`.
        references: The published numbers.
        results: Of all data sets; those of others are ignored.
    """
    data_set = references.data_sets.get(key, DataSet(title=key))
    own = [result for result in results if references.key(result.data_set) == key]
    own.sort(key=lambda result: _KINDS.index(result.kind))
    last: dict[int, int] = {}  # entry number -> number of its last result
    for entry_number, entry in enumerate(data_set.entries):
        for number, result in enumerate(own):
            if _reproduces(entry, result, references):
                last[entry_number] = number
    rest = [entry for n, entry in enumerate(data_set.entries) if n not in last]
    rest.sort(key=lambda entry: (entry.config is None, _KINDS.index(entry.kind)))
    settings = tuple(title for title, of in _SETTINGS.items() if len({of(result) for result in own} - {None}) > 1)
    names = _columns(data_set, own, [entry for entry in rest if entry.config])
    maker = _RowMaker(references, settings, names, bool(own))
    rows: list[Row] = []
    for number, result in enumerate(own):
        rows.append(maker.measured(result, _differences(result, data_set, references)))
        for entry_number, place in last.items():
            rows += maker.published(data_set.entries[entry_number]) if place == number else []
    for entry in rest:
        if entry.config is not None:
            rows.append(maker.not_run(entry))
        rows += maker.published(entry, "; not run here")
    description = ("what", "backbone", "frames x size", "pre-trained on", *settings)
    videos = ["videos, test / training"] if own else []
    return Table(
        title=data_set.title,
        columns=(*description, *map(_title, maker.names), *videos, "where from"),
        numeric=(*(False for _ in description), *(True for _ in maker.names), *(False for _ in videos), False),
        rows=tuple(rows),
        notes=tuple(maker.notes),
        remarks=_remarks(own, maker.names),
    )


@dataclass
class _RowMaker:
    """Makes the rows of one table, and numbers their notes."""

    references: References
    settings: tuple[str, ...]  # in which the rows differ, of `_SETTINGS`
    names: list[str]  # of the numbers, one for each column
    videos: bool  # whether there is a column with numbers of videos
    notes: dict[str, int] = field(default_factory=dict)

    def measured(self, result: Result, notes: list[str]) -> Row:
        cells = (_measured(result, name) for name in self.names)
        settings = (_SETTINGS[name](result) or _EMPTY for name in self.settings)
        row = *_described_result(result, self.references), *settings, *cells, result.videos(), result.name
        return Row("measured", row, self._numbered(notes), result.file)

    def not_run(self, entry: Entry) -> Row:
        wanted = entry.measures or entry.published
        cells = ["not run" if name in wanted else _EMPTY for name in self.names]
        return Row("not run", (*self._described(entry), *self._filled(cells), f"{entry.config}"))

    def published(self, entry: Entry, end: str = "") -> list[Row]:
        if not entry.published:
            return []
        what, *others = self._described(entry)
        cells = [_cell(entry.published.get(name)) for name in self.names]
        row = f"published: {what}", *others, *self._filled(cells), f"{entry.source}{end}"
        return [Row("published", row, self._numbered([entry.note] if entry.note else []))]

    def _described(self, entry: Entry) -> tuple[str, ...]:
        return *_described_entry(entry, self.references), *(_EMPTY for _ in self.settings)

    def _filled(self, cells: list[str]) -> list[str]:
        return [*cells, _EMPTY] if self.videos else cells

    def _numbered(self, notes: list[str]) -> tuple[int, ...]:
        return tuple(self.notes.setdefault(text, len(self.notes) + 1) for text in notes)


# Matching results with references ---------------------------------------------------------------------------


def _reproduces(entry: Entry, result: Result, references: References) -> bool:
    """Whether a result is one of the config of an entry."""
    return (
        entry.config is not None
        and entry.kind == result.kind
        # The results of a finetuned network do not name the method of its pre-training.
        and (entry.kind != "features" or entry.method is None or entry.method.lower() == result.method)
        and entry.backbone in (None, result.backbone)
        and entry.frames in (None, result.frames)
        and entry.size in (None, result.size)
        and entry.subset == result.subset
        and (entry.pretrained is None or _starts_from(result, entry.pretrained, references))
    )


def _starts_from(result: Result, key: str, references: References) -> bool:
    """Whether the weights come from a data set: by the list of the pre-training, or by the name of a file."""
    if result.start is None:
        return False
    if result.kind == "features" and result.method is not None:
        return references.key(data_set_of(result.start)) == key
    names = "|".join(map(re.escape, (key, *references.data_sets[key].names)))
    return re.search(rf"(?<![a-z0-9])({names})(?![a-z0-9])", result.start.lower()) is not None


def _differences(result: Result, data_set: DataSet, references: References) -> list[str]:
    """One note for each published protocol that a result differs from."""
    content = {**result.content, "splits": len(result.splits)}
    texts = []
    for protocol in (references.protocols[name] for name in data_set.protocols):
        if result.kind not in protocol.kinds or not {*protocol.numbers} & result.numbers.keys():
            continue
        lines = [
            _difference(path.removeprefix("protocol.").removeprefix("config."), at(content, path), wanted)
            for path, wanted in protocol.settings.items()
            if not any(_equal(at(content, path), one) for one in _choices(wanted))
            and not (result.third_party and path.startswith("config."))
        ]
        if data_set.tested and not {*result.tested} <= {*data_set.tested}:
            lines.append(_difference("tested videos", sorted({*result.tested}), {"one_of": [*data_set.tested]}))
        if result.third_party:
            lines.append("training settings unknown")
        if lines:
            texts.append(f"Differs from {protocol.title}: {'; '.join(lines)}.")
    return texts


def _difference(name: str, value: Any, wanted: Any) -> str:
    return f"{name} {_shown(value)} (published {' or '.join(map(_shown, _choices(wanted)))})"


def _choices(wanted: Any) -> Sequence[Any]:
    return wanted["one_of"] if isinstance(wanted, dict) else [wanted]


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_equal, value, wanted))
    if is_number(value) and is_number(wanted):
        return math.isclose(value, wanted, rel_tol=1e-3, abs_tol=1e-12)  # 8 of 60 epochs are 0.1333
    return bool(value == wanted)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None:
        return "not set"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Cells ------------------------------------------------------------------------------------------------------


def _columns(data_set: DataSet, own: Sequence[Result], expected: Sequence[Entry]) -> list[str]:
    """Names of the numbers that any row has, in the order of their columns."""
    names = {name for result in own for name in result.numbers}
    names |= {name for entry in expected for name in entry.measures}
    names |= {name for entry in data_set.entries for name in entry.published}
    if data_set.columns is not None:
        names &= {*data_set.columns}
    places = {name: place for name in names if (place := column_order(name)) is not None}
    return sorted(places, key=lambda name: places[name])


def _title(name: str) -> str:
    prefix, sign, number = name.partition("@")
    return TITLES[prefix + sign].format(number)


def _cell(value: float | str | None) -> str:
    if value is None:
        return _EMPTY
    return value if isinstance(value, str) else f"{value:.1f}"


def _measured(result: Result, name: str) -> str:
    """A number in percent, with its standard deviation if there is one, and that over seeds in brackets."""
    if name not in result.numbers:
        return _EMPTY
    scale, digits = (1, 2) if name == "uniformity_loss" else (100, 1)
    values = result.numbers[name]
    spread = stdev(values) if len(values) > 1 else result.spread.get(name)
    text = f"{scale * mean(values):.{digits}f}"
    text += "" if spread is None else f" ± {scale * spread:.{digits}f}"
    of_seeds = result.content.get("seed_spread", {}).get(name)
    return text if of_seeds is None else f"{text} ({scale * of_seeds:.{digits}f})"


def _remarks(own: Sequence[Result], names: Sequence[str]) -> tuple[str, ...]:
    """Explain ± and the uniformity loss, where the table has them."""
    texts = []
    if several := [result.varied for result in own if result.varied and len(result.splits) > 1]:
        of_means = " of the means over seeds" if any(" x " in varied for varied in several) else ""
        brackets = ", in brackets over the seeds of a split, averaged over splits" if of_means else ""
        over = [f"splits{of_means}"] if any("split" in varied for varied in several) else []
        over += ["seeds of one split"] if any("split" not in varied for varied in several) else []
        both = "; with a seed each it is of lists and seeds together" * any("each" in varied for varied in several)
        texts.append(f"±: standard deviation over {', or '.join(over)} (n - 1){brackets}{both}.")
    if any(name in result.spread for result in own for name in names):
        texts.append("± of a single split: standard deviation over draws of the few training videos.")
    if "uniformity_loss" in names:
        texts.append("The uniformity loss is not a percentage: lower is more uniform, see docs/evaluation.md.")
    return (" ".join(texts),) if texts else ()


def _described_entry(entry: Entry, references: References) -> tuple[str, str, str, str]:
    """First cells of a row that was not measured: what, backbone, clips, pre-training."""
    start = references.data_sets[entry.pretrained].title if entry.pretrained else _EMPTY
    what = _what(entry.kind, entry.method, entry.subset)
    return what, entry.backbone or _EMPTY, _clip(entry.frames, entry.size, entry.test_size), start


def _described_result(result: Result, references: References) -> tuple[str, str, str, str]:
    """First cells of a measured row: what, backbone, clips, pre-training."""
    start = _EMPTY
    if result.start is not None and result.kind == "features" and result.method is not None:
        key = references.key(data_set_of(result.start))
        start = references.data_sets[key].title if key in references.data_sets else key
    elif result.start is not None:  # the run that wrote the checkpoint
        file = Path(result.start)
        run = file.parent.parent if file.parent.name == "checkpoints" else file.with_suffix("")
        start = run.parent.name if re.fullmatch(r"split\d+", run.name) else run.name
    method = "third-party weights" if result.third_party else result.learned_by
    clip = _clip(result.frames, result.size, result.test_size)
    return _what(result.kind, method, result.subset), result.backbone or _EMPTY, clip, start


def _what(kind: Kind, method: str | None, subset: dict[str, Any] | None) -> str:
    parts: list[str] = [kind] if method is None else [kind, method]
    if subset is not None:
        fraction, each = subset.get("fraction"), subset.get("per_class")
        parts.append(f"{100 * fraction:g} % of the labels" if is_number(fraction) else f"{each} labels per class")
    return ", ".join(parts)


def _clip(frames: int | None, size: int | None, test_size: int | None) -> str:
    if frames is None or size is None:
        return _EMPTY
    return f"{frames}x{size}²" if test_size in (None, size) else f"{frames}x{size}², test {test_size}²"
