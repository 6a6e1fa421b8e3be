"""`results.json`: what every command that measures states beside its numbers, and when existing results are reused."""

import logging
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from vidssl.base.atomic import write_json
from vidssl.base.command_line_and_notices import command_line, leave_out
from vidssl.base.config import Tree, config_differences
from vidssl.base.safe_parse import read_json
from vidssl.evaluation.train_test_overlap import report_equal_features, report_overlap
from vidssl.version import __version__

_log = logging.getLogger(__name__)

Results = dict[str, Any]
NAME = "results.json"
_HASH = re.compile("[0-9a-f]{16,64}")
_HASHED = {  # what they are of, where the name does not say it
    **{"weights.sha256": "file of weights", "code": "code of the network", "classes": "classes.txt"},
    **{
        f"{kind}data.{key}": "content of the files"
        for kind in ("", "train_", "gallery_")
        for key in ("sizes", "changed")
    },
}
# The number of entries "Numbers change" in CHANGELOG.md, as tests/jobs/test_overlap.py checks: results of another
# format are measured again.
RESULTS_FORMAT = 45


def complete(
    content: Results, *, request: Tree, overlap: Tree | None, query: str | None, gallery: str | None = None
) -> Results:
    """Add to the results of a measurement what every `results.json` has.

    `request` is what decides the numbers, plain data with `weights`. `overlap` is that of `measure_overlap`; None:
    nothing is tested. `query` and `gallery` are the fingerprints of the lists.
    """
    training = ((overlap or {}).get("training") or {}).get("fingerprint")
    fingerprints = {"query": query, "gallery": gallery, "training": training}
    return {**content, "overlap": overlap, "fingerprints": fingerprints, "request": request, **_origin()}


def complete_splits(content: Results, splits: Mapping[str, Results]) -> Results:
    """Likewise for the results over several splits, of those of each: `overlap` and the like are of each, by split."""
    of_splits = {
        name: {n: results[name] for n, results in splits.items()} for name in ("overlap", "fingerprints", "request")
    }
    return {**content, **of_splits, "request": {"splits": of_splits["request"]}, **_origin()}


def _origin() -> Tree:
    return {
        "command": command_line(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"vidssl": __version__, "torch": str(torch.__version__)},
        "format": RESULTS_FORMAT,
    }


def write_results(out: Path, results: Results) -> None:
    """Write `results.json`; they come from `complete`."""
    write_json(out / NAME, results)


def existing_results(out: Path, request: Tree, *, reuse: bool = True) -> Results | None:
    """Return existing results of the same request, format and version of vidssl.

    Others, and with `reuse` False all, are going to be replaced: the log states why.
    """
    path = out / NAME
    try:
        results = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.info("%s cannot be read (%s): replacing it", path, error)
        return None
    reason = _why_not(results, request)
    if reason is None and reuse and {"overlap", "list"} <= results.keys():
        _log.info("%s holds the results of this test; delete it to measure again", path)
        if results["overlap"]:
            report_overlap(results["overlap"], results["list"])
            report_equal_features(results["overlap"], results["list"])
        missing = [*results.get("missing", ()), *results.get("missing_train", ())]
        leave_out((video["path"], video.get("reason") or video["path"]) for video in missing)
        return dict(results)
    if reason is not None:
        _log.info("%s holds %s: replacing it", path, reason)
    return None


def _why_not(results: Any, request: Tree) -> str | None:
    """Why results are not those of a request; None if they are."""
    stored = results.get("request") if isinstance(results, dict) else None
    if not isinstance(stored, dict):
        return "no results of a test"
    if stored != request:
        return f"results of another test ({describe_changes(stored, request)})"
    if results.get("format") != RESULTS_FORMAT:
        return f"results of format {results.get('format')}, and those of this vidssl have format {RESULTS_FORMAT}"
    versions = results.get("versions")
    version = versions.get("vidssl") if isinstance(versions, dict) else None
    return None if version == __version__ else f"results of vidssl {version}, and this is {__version__}"


def weights_of(results: Any) -> str | None:
    """Return the sha256 of the checkpoint that results are of; None if it is not stated, or they are of several."""
    content = results
    for key in ("request", "weights", "sha256"):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, str) else None


def describe_changes(stored: Tree, requested: Tree) -> str:
    """List in words what differs between two requests: of hashes only what they are of."""
    changes: dict[str, None] = {}
    for name, *values in config_differences(stored, requested):
        if any(isinstance(value, str) and _HASH.fullmatch(value) for value in values):
            words = f"another {_HASHED.get(name, name)}"
        else:
            a, b = ("nothing" if value is None else value for value in values)
            words = f"{name.removeprefix('protocol.')} {a} stored, {b} requested"
        changes[words] = None
    return "; ".join(changes)


def clips_in_words(protocol: Mapping[str, Any]) -> str:
    """Describe the clips of a `protocol` of results: number, frames, span, crops, size, a single stream or layer."""
    if "parts" in protocol:
        return " + ".join(map(clips_in_words, protocol["parts"]))
    clip = protocol["clip"]
    if clip["seconds"] is None:
        span = f"every {clip['sampling_rate']}. frame"
    else:
        span = "the whole video" if clip["seconds"] == "whole" else f"{clip['seconds']:.2g} s"
    part = ".".join(name for name in (protocol.get("stream"), protocol.get("layer")) if name)
    order = " in order" if protocol.get("join") == "order" else ""
    crops = f"{protocol['crops']} crops of " if protocol["crops"] > 1 else ""
    source = f" of a short side of {protocol['short_side']}" if protocol["short_side"] is not None else ""
    number = f"{protocol['clips']}{order} of {clip['frames']} frames, {span}, {crops}{protocol['size']}²{source}"
    return number + (part and f", of {part}")
