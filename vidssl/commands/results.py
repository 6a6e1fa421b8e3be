"""`results.json`: results of the same request are not computed again; tables and CSV files."""

import csv
import io
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vidssl.atomic import write_whole
from vidssl.config import Tree, differences

_log = logging.getLogger(__name__)

Results = dict[str, Any]


def existing_results(out: Path, request: Tree) -> Results | None:
    """Return existing results of the same request. Others are replaced: the log states what differs."""
    path = out / "results.json"
    with suppress(OSError, ValueError):
        results: Results = json.loads(path.read_text(encoding="utf-8"))
        stored = results.get("request") if isinstance(results, dict) else None
        if stored == request:
            _log.info("%s holds the results of this test; delete it to measure again", path)
            return results
        earlier = "results of an earlier version, or of several splits"
        changed = describe_changes(stored, request) if isinstance(stored, dict) else earlier
        _log.info("%s holds results of another test (%s): replacing it", path, changed)
    return None


def describe_changes(stored: Tree, requested: Tree) -> str:
    """List what differs between two requests."""
    return "; ".join(
        f"{name} {'nothing' if a is None else a} stored, {'nothing' if b is None else b} requested"
        for name, a, b in differences(stored, requested)
    )


def format_count(found: int, missing: Sequence[object]) -> str:
    """Format a count, with the total if some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def format_clips(test: Tree) -> str:
    """Format the views of a video, of the settings of a test: `4 clips x 1 crop of 64²`."""
    parts = [f"{test[name]} {name.removesuffix('s') if test[name] == 1 else name}" for name in ("clips", "crops")]
    return f"{' x '.join(parts)} of {test['size']}²"


def format_tests(found: Mapping[str, Results]) -> str:
    """Format the views of a video in the results of networks, by name: once if they are equal, else for each."""
    clips = {name: format_clips(results["protocol"]) for name, results in found.items()}
    if len({*clips.values()}) == 1:
        return next(iter(clips.values()))
    return ", ".join(f"{name} {text}" for name, text in clips.items())


def format_table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Format rows as lines with columns of equal width; `sides` has `<` (left) or `>` (right) per column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [line.format(*row).rstrip() for row in rows]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_whole(path, text.getvalue().encode())


# What the numbers depend on beside the network, as results.json of `test` and `retrieval` name it.
_LISTS = {"list": "query", "query": "query", "train_list": "gallery", "gallery": "gallery"}  # and their fingerprints
_COUNTS = ("num_videos", "num_train", "num_queries", "num_gallery")
_MISSING = ("missing", "missing_train", "missing_queries", "missing_gallery")
_OPTIONS = ("centered", "knn_k", "drop_duplicates", "windows", "one_per_video", "copies", "format")
_FILES = ("classes", "data", "train_data", "gallery_data")  # of `request`
# Of `protocol`: what belongs to the network, and what cannot change a number (`missing` names what was left out).
_NOT_OF_TEST = ("mean", "std", "cache", "allow_missing")


def differing_tests(one: Results, other: Results) -> list[str]:
    """List what differs between the tests of two results, `centered False, True`: nothing if only the networks do.

    Numbers of different tests are not subtracted. Protocols that both have must have equal settings.
    """
    tests = [_test_of(results, {*one} & {*other}) for results in (one, other)]
    shared = {*tests[0]["protocols"]} & {*tests[1]["protocols"]}
    for test in tests:
        test["protocols"] = {name: test["protocols"][name] for name in shared}
    return [f"{name} {a}, {b}" for name, a, b in differences(tests[0], tests[1])]


def _test_of(results: Results, both: set[str]) -> Tree:
    """Return what describes the test; `both` are the fields that both results have."""
    protocol = {name: value for name, value in results.get("protocol", {}).items() if name not in _NOT_OF_TEST}
    test: Tree = {"protocol": protocol, "protocols": {each["name"]: each for each in results.get("protocols") or ()}}
    prints = results["fingerprints"] or {} if "fingerprints" in both else {}
    for name, kind in _LISTS.items():
        test[name] = prints.get(kind) or results.get(name) if name in results else None
    test |= {name: results.get(name) for name in (*_COUNTS, *_OPTIONS)}
    test |= {name: [gap["path"] for gap in results.get(name) or ()] for name in _MISSING}
    if "request" in both:
        test |= {name: results["request"].get(name) for name in _FILES}
    return test
