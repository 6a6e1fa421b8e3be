"""Results as text: tables, counts and CSV files."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vidssl.atomic import write_whole
from vidssl.config import Tree
from vidssl.evaluation.result_files import Results
from vidssl.output_folder import claim

BACKBONE = "features of the backbone"
# Files that commands write beside `results.json`, by the kind of results.
_BESIDE = {
    "test": ("predictions_*.csv", "per_class_*.csv", "confusion_*.png"),
    "retrieval": ("index.html", "previews", "retrieval.png"),
    "map": ("index.html", "videos.csv", "videos.parquet"),
    "invariance": ("invariance.png",),
    "robustness": ("robustness.png", "examples.png"),
    "classes": ("classes.png",),
    "background": ("background.png", "examples.png"),
    "gradcam": ("index.html", "gradcam.png", "overlays"),
    "analysis": ("index.html",),
}


def claim_results(
    out: Path, kind: str, inputs: Mapping[str, Path | None], read: Iterable[str | Path | None] = ()
) -> None:
    """Decide that results of a kind may be written to a folder, as `claim`; `read` are checkpoints and the like."""
    files = [None if path is None else Path(path) for path in read]
    claim(out, kind, ["results.json", *_BESIDE.get(kind, ())], inputs=inputs, read=files)


def format_count(found: int, missing: Sequence[object]) -> str:
    """Format a count, with the total if some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def format_clips(test: Tree) -> str:
    """Format the views of a video, of the settings of a test: `4 clips x 1 crop of 64²`.

    Features that are not those of the whole backbone are named; several networks have their own views.
    """
    if "parts" in test:
        return " + ".join(dict.fromkeys(map(format_clips, test["parts"])))
    parts = [f"{test[name]} {name.removesuffix('s') if test[name] == 1 else name}" for name in ("clips", "crops")]
    features = format_features(test)
    return f"{' x '.join(parts)} of {test['size']}²" + (f", {features}" if features != BACKBONE else "")


def format_features(test: Tree) -> str:
    """Name the features that a test uses: those of the backbone or of a stream, or the maps of a layer."""
    stream, layer = test.get("stream"), test.get("layer")
    if test.get("join") == "order":
        return f"{format_features({**test, 'join': 'mean'})}, clips in order".removeprefix(f"{BACKBONE}, ")
    if layer is None:
        return BACKBONE if stream is None else f"features of the stream {stream}"
    maps = layer if stream is None else f"{stream}.{layer}"
    return f"maps of {maps}, {test['grid']} x {test['grid']} x {test['grid_frames']} cells"


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
