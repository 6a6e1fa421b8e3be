"""Results beside the published numbers: one table for each data set, in Markdown and HTML."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, get_args

from vidssl.atomic import write_whole
from vidssl.commands.references import DataSet, Entry, References, read_references
from vidssl.commands.results import TITLES, Kind, Result, at, column, data_set_of, is_number, read_results
from vidssl.errors import DataError
from vidssl.viz import Row, Table, markdown, write_tables_page

_START, _END = re.compile(r"<!-- report: (.+) -->"), "<!-- end of report -->"
_KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order of their rows
_NOTHING = "–"
_TITLE = "vidssl: results beside the published numbers"
_SUMMARY = (
    "In percent. The last column leads to the results.json of what was measured here, names the config of what was not "
    "run, or the source of what others published. Notes say where a measurement differs from the published protocol."
)


def report(folders: Sequence[Path], out: Path | None = None) -> str:
    """Set the results below folders beside the published numbers; give the tables as Markdown.

    Args:
        folders: Searched for results.json. Those in the folders below one over several splits are parts of it.
        out: Folder for `report.md` and `report.html`, made where it is missing; None: nothing is written.

    Raises:
        DataError: There is no result, a file is none, or `out` cannot be written.
    """
    references, results = read_references(), read_results(folders)
    if not results:
        raise DataError(
            f"no results.json in {', '.join(map(str, folders))}; run tools/test_net.py or tools/retrieval.py first"
        )
    tested = {references.key(result.data_set) for result in results}
    keys = [
        *(key for key in references.data_sets if key in tested),
        *sorted(tested - {*references.data_sets}),
    ]
    tables = [make_table(key, references, results) for key in keys]
    if out is None:
        return _sections(tables, Path())
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.md").write_text(
            f"# Results\n\n{_SUMMARY}\n\n{_sections(tables, out)}\n", encoding="utf-8"
        )
        write_tables_page(out / "report.html", title=_TITLE, summary=_SUMMARY, tables=tables)
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}; name a folder with --out") from None
    return f"{_sections(tables, Path())}\n\n{out / 'report.html'}"


def update(page: Path, folders: Sequence[Path]) -> str:
    """Make the tables of a Markdown page anew; give its name.

    Raises:
        DataError: As of `fill`, or the page cannot be written.
    """
    write_whole(page, fill(page, folders).encode())
    return str(page)


def fill(page: Path, folders: Sequence[Path]) -> str:
    """Give the text of a Markdown page with its tables made anew.

    A table stands between the lines `<!-- report: NAME -->`, NAME being a data set, and `<!-- end of report -->`.

    Raises:
        DataError: The page cannot be read or has no table, a NAME is unknown or an end is missing; a file is no result.
    """
    try:
        lines = page.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {page}: {getattr(error, 'strerror', 'it is no text')}") from None
    references, results = read_references(), read_results(folders)
    known = {*references.data_sets, *(references.key(result.data_set) for result in results)}
    written: list[str] = []
    begun = 0  # number of the line that began the table
    for number, line in enumerate(lines, 1):
        start = _START.fullmatch(line)
        if begun and start:
            break
        if start:
            begun, key = number, references.key(start[1])
            if key not in known:
                raise DataError(
                    f"{page}:{number}: no data set '{start[1]}'; there are: {', '.join(sorted(known))}"
                )
            written += [line, "", markdown(make_table(key, references, results), page.parent), "", _END]
        elif line == _END:
            if not begun:
                raise DataError(f"{page}:{number}: '{_END}' without '<!-- report: NAME -->' before it")
            begun = 0
        elif not begun:
            written.append(line)
    if begun:
        raise DataError(
            f"{page}:{begun}: no '{_END}' after '{lines[begun - 1]}'; write it on a line of its own"
        )
    if _END not in written:
        raise DataError(
            f"{page} has no table; write '<!-- report: NAME -->' and '{_END}' on lines of their own"
        )
    return "\n".join(written) + "\n"


def make_table(key: str, references: References, results: Sequence[Result]) -> Table:
    """Make the table of one data set: what was measured, what was not run, what was published.

    A published row stands below the last result of the config that reproduces it.

    Args:
        key: Of the data set, as `References.key` gives it.
        references: What was published.
        results: Of all data sets; those of this one are taken.
    """
    data_set = references.data_sets.get(key, DataSet(title=key))
    own = [result for result in results if references.key(result.data_set) == key]
    own.sort(key=lambda result: _KINDS.index(result.kind))
    entries = data_set.entries
    last = {}  # of each entry that was run, the last result
    for entry_number, entry in enumerate(entries):
        for number, result in enumerate(own):
            if _fits(entry, result, references):
                last[entry_number] = number
    names = _columns(
        data_set, own, [entry for n, entry in enumerate(entries) if entry.config and n not in last]
    )
    blank = [_NOTHING] if own else []  # of the column that says on how many videos was measured
    notes: dict[str, int] = {}

    def numbered(*texts: str) -> tuple[int, ...]:
        return tuple(notes.setdefault(text, len(notes) + 1) for text in texts)

    def published(entry: Entry, end: str) -> list[Row]:
        if not entry.published:
            return []
        what, *others = _who(entry, references)
        cells = (_cell(entry.published.get(name)) for name in names)
        marks = numbered(entry.note) if entry.note else ()
        described = f"published: {what}", *others
        return [Row("published", (*described, *cells, *blank, f"{entry.source}{end}"), marks)]

    rows: list[Row] = []
    for number, result in enumerate(own):
        marks = numbered(*_differences(result, data_set, references))
        cells = (_measured(result, name) for name in names)
        described = _described(result, references)
        rows.append(Row("measured", (*described, *cells, result.videos(), result.name), marks, result.file))
        for entry_number, place in last.items():
            rows += published(entries[entry_number], "") if place == number else []
    rest = [entry for n, entry in enumerate(entries) if n not in last]
    for entry in sorted(rest, key=lambda entry: (entry.config is None, _KINDS.index(entry.kind))):
        if entry.config is not None:
            wanted = entry.measures or entry.published
            cells = ("not run" if name in wanted else _NOTHING for name in names)
            rows.append(Row("not run", (*_who(entry, references), *cells, *blank, entry.config)))
        rows += published(entry, "; not run here")
    description = ("what", "backbone", "frames x size", "pre-trained on")
    return Table(
        title=data_set.title,
        columns=(
            *description,
            *map(_title, names),
            *(["videos, test / training"] if own else []),
            "where from",
        ),
        numeric=(*(False for _ in description), *(True for _ in names), *(False for _ in blank), False),
        rows=tuple(rows),
        notes=tuple(notes),
        remarks=_remarks(own, names),
    )


def _sections(tables: Sequence[Table], folder: Path) -> str:
    return "\n\n".join(f"## {table.title}\n\n{markdown(table, folder)}" for table in tables)


# What belongs together, and what differs --------------------------------------------------------------------


def _fits(entry: Entry, result: Result, references: References) -> bool:
    """Whether a result is what the config of an entry gives."""
    return (
        entry.config is not None
        and entry.kind == result.kind
        # Of a finetuned network nothing says by which method it was trained first.
        and (entry.kind != "features" or entry.method is None or entry.method.lower() == result.method)
        and entry.backbone in (None, result.backbone)
        and entry.frames in (None, result.frames)
        and entry.size in (None, result.size)
        and entry.subset == result.subset
        and (entry.pretrained is None or _starts_from(result, entry.pretrained, references))
    )


def _starts_from(result: Result, key: str, references: References) -> bool:
    """Whether a result's weights come from a data set: by the list of its pre-training, or by the name of a file."""
    if result.start is None:
        return False
    if result.kind == "features" and result.method is not None:
        return references.key(data_set_of(result.start)) == key
    names = "|".join(map(re.escape, (key, *references.data_sets[key].names)))
    return re.search(rf"(?<![a-z0-9])({names})(?![a-z0-9])", result.start.lower()) is not None


def _differences(result: Result, data_set: DataSet, references: References) -> list[str]:
    """Say for each published protocol of the data set in what a result differs from it."""
    content = {**result.content, "splits": len(result.parts)}
    texts = []
    for protocol in (references.protocols[name] for name in data_set.protocols):
        if result.kind not in protocol.kinds or not {*protocol.numbers} & result.numbers.keys():
            continue
        lines = [
            _difference(path.removeprefix("protocol.").removeprefix("config."), at(content, path), wanted)
            for path, wanted in protocol.settings.items()
            if not any(_equal(at(content, path), one) for one in _choices(wanted))
            and not (result.trained_by_others and path.startswith("config."))
        ]
        if data_set.tested and not {*result.tested} <= {*data_set.tested}:
            lines.append(
                _difference("tested videos", sorted({*result.tested}), {"one_of": [*data_set.tested]})
            )
        if result.trained_by_others:
            lines.append("how it was trained is not known here")
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
    places = {name: place for name in names if (place := column(name)) is not None}
    return sorted(places, key=lambda name: places[name])


def _title(name: str) -> str:
    prefix, sign, number = name.partition("@")
    return TITLES[prefix + sign].format(number)


def _cell(value: float | str | None) -> str:
    if value is None:
        return _NOTHING
    return value if isinstance(value, str) else f"{value:.1f}"


def _measured(result: Result, name: str) -> str:
    """Write a number in percent, with its spread where it has one."""
    if name not in result.numbers:
        return _NOTHING
    scale, digits = (1, 2) if name == "uniformity_loss" else (100, 1)
    values = result.numbers[name]
    spread = stdev(values) if len(values) > 1 else result.spread.get(name)
    text = f"{scale * mean(values):.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"


def _remarks(own: Sequence[Result], names: Sequence[str]) -> tuple[str, ...]:
    """Say what ± is, of the columns that are shown, and what is not a percentage."""
    texts = []
    if any(len(result.parts) > 1 for result in own):
        texts.append("±: standard deviation over splits (n - 1).")
    if any(name in result.spread for result in own for name in names):
        texts.append("± of a single split: standard deviation over draws of the few training videos.")
    if "uniformity_loss" in names:
        texts.append(
            "The uniformity loss is not a percentage: lower is more uniform, see docs/evaluation.md."
        )
    return (" ".join(texts),) if texts else ()


def _who(entry: Entry, references: References) -> tuple[str, str, str, str]:
    """Describe a row that was not measured: what, backbone, clips, pre-training."""
    start = references.data_sets[entry.pretrained].title if entry.pretrained else _NOTHING
    what = _what(entry.kind, entry.method, entry.subset)
    return what, entry.backbone or _NOTHING, _clip(entry.frames, entry.size, entry.test_size), start


def _described(result: Result, references: References) -> tuple[str, str, str, str]:
    """Describe a row that was measured, in the same way."""
    start = _NOTHING
    if result.start is not None and result.kind == "features" and result.method is not None:
        key = references.key(data_set_of(result.start))
        start = references.data_sets[key].title if key in references.data_sets else key
    elif result.start is not None:  # the run that the checkpoint is of
        file = Path(result.start)
        run = file.parent.parent if file.parent.name == "checkpoints" else file.with_suffix("")
        start = run.parent.name if re.fullmatch(r"split\d+", run.name) else run.name
    method = "weights of others" if result.trained_by_others else result.learned_by
    clip = _clip(result.frames, result.size, result.test_size)
    return _what(result.kind, method, result.subset), result.backbone or _NOTHING, clip, start


def _what(kind: Kind, method: str | None, subset: dict[str, Any] | None) -> str:
    parts: list[str] = [kind] if method is None else [kind, method]
    if subset is not None:
        share, each = subset.get("share"), subset.get("per_class")
        parts.append(f"{100 * share:g} % of the labels" if is_number(share) else f"{each} labels a class")
    return ", ".join(parts)


def _clip(frames: int | None, size: int | None, test_size: int | None) -> str:
    if frames is None or size is None:
        return _NOTHING
    return f"{frames}x{size}²" if test_size in (None, size) else f"{frames}x{size}², test {test_size}²"
