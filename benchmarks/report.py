r"""Measured results beside published numbers: one Markdown table for each data set.

    python benchmarks/report.py output/weizmann output/ucf101 --out output/report.md
    python benchmarks/report.py docs/results --into docs/results/reproduce.md

`references.yaml` holds the published numbers. Notes name each setting in which a result differs from the published one.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from comparison import make_table
from references import read_references
from results import read_results

from vidssl.base.atomic import write_whole
from vidssl.base.errors import DataError, VidsslError

_START, _END = re.compile(r"<!-- report: (.+) -->"), "<!-- end of report -->"
_SUMMARY = (
    "In percent. The last column links to the results.json of a measurement, names the config of what was not run, or "
    "the source of published numbers. Notes name the settings that differ from the published protocol."
)


def main() -> None:
    """Print tables, write them to a file, or renew those of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="searched for results.json")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--out", type=Path, metavar="FILE", help="Markdown file to write")
    place.add_argument("--into", type=Path, metavar="PAGE", help="Markdown page whose tables are renewed")
    options = parser.parse_args()
    try:
        if options.into is not None:
            write_whole(options.into, renewed(options.into, options.folders).encode())
        elif options.out is not None:
            text = f"# Results\n\n{_SUMMARY}\n\n{report(options.folders, options.out.parent)}\n"
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_whole(options.out, text.encode())
        else:
            print(report(options.folders, Path()))
    except (VidsslError, OSError) as error:
        sys.exit(f"error: {error}")


def report(folders: Sequence[Path], folder: Path) -> str:
    """Tables of all data sets that were tested, as Markdown with links relative to `folder`.

    Raises:
        DataError: There is no result, or a file is not one.
    """
    references, results = read_references(), read_results(folders)
    if not results:
        raise DataError(f"no results.json in {', '.join(map(str, folders))}; run vidssl test or vidssl retrieval first")
    tested = {references.key(result.data_set) for result in results}
    keys = [*(key for key in references.data_sets if key in tested), *sorted(tested - {*references.data_sets})]
    tables = [make_table(key, references, results) for key in keys]
    return "\n\n".join(f"## {table.title}\n\n{table.markdown(folder)}" for table in tables)


def renewed(page: Path, folders: Sequence[Path]) -> str:
    """Text of a Markdown page with its tables made anew.

    A table stands between the lines `<!-- report: NAME -->`, where NAME is a data set, and `<!-- end of report -->`.

    Raises:
        DataError: A NAME is unknown, a line is missing its counterpart, or a file is not a result.
    """
    references, results = read_references(), read_results(folders)
    known = {*references.data_sets, *(references.key(result.data_set) for result in results)}
    lines: list[str] = []
    begin = 0  # line number of an open '<!-- report: NAME -->'
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        start = _START.fullmatch(line)
        if start and not begin:
            begin, key = number, references.key(start[1])
            if key not in known:
                raise DataError(f"{page}:{number}: unknown data set '{start[1]}'; known: {', '.join(sorted(known))}")
            table = make_table(key, references, results)
            lines += [line, "", table.markdown(page.parent), "", _END]
        elif start:
            break
        elif line == _END:
            if not begin:
                raise DataError(f"{page}:{number}: '{_END}' without '<!-- report: NAME -->' before it")
            begin = 0
        elif not begin:
            lines.append(line)
    if begin:
        raise DataError(f"{page}:{begin}: '<!-- report: NAME -->' without '{_END}' on a line of its own after it")
    if _END not in lines:
        raise DataError(f"{page} has no table: no line '<!-- report: NAME -->'")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
