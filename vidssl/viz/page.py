"""Pages that a browser shows without a server: of a retrieval, of runs that are compared, of tables of results."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from vidssl.types import Frames

WIDTH, HEIGHT = 160, 96  # pixels: larger frames are shrunk to fit
GROWN = 128  # pixels: smaller frames are shown at the largest whole multiple that is not higher than this


@dataclass(frozen=True)
class Preview:
    """One video as a strip of small frames, side by side in one JPEG, which the page plays."""

    jpeg: bytes
    count: int  # frames in the strip
    width: int  # pixels, of one frame in the strip
    height: int

    @property
    def base64(self) -> str:
        """The strip as it stands in a data URI."""
        return base64.b64encode(self.jpeg).decode("ascii")

    @property
    def zoom(self) -> int:
        """How many screen pixels a pixel of the strip is wide: whole, so that tiny videos stay crisp."""
        return max(1, min(GROWN // self.height, WIDTH // self.width))

    @property
    def shown_width(self) -> int:
        """Screen pixels."""
        return self.width * self.zoom

    @property
    def shown_height(self) -> int:
        """Screen pixels."""
        return self.height * self.zoom


@dataclass(frozen=True)
class Hit:
    """One answer to a query."""

    video: str  # key of its preview
    name: str  # shown to the reader, mostly the path in the list
    label: int  # -1: unknown
    similarity: float  # to the query


@dataclass(frozen=True)
class QueryRow:
    """One query and its nearest videos, nearest first."""

    video: str  # key of its preview
    name: str
    label: int  # -1: unknown
    hits: tuple[Hit, ...]


def preview(frames: Frames, *, count: int = 8, quality: int = 75) -> Preview:
    """Makes the small playing picture of one video.

    Args:
        frames: (T, 3, H, W) uint8 RGB, T >= 1.
        count: at most so many frames are kept, evenly spaced.
        quality: of the JPEG, 1 to 100.

    Raises:
        ValueError: when the frames have another shape or type, or `count` is less than 1.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1] != 3 or frames.size == 0:
        raise ValueError(f"frames are (T, 3, H, W) uint8, got {frames.shape} {frames.dtype}")
    if count < 1:
        raise ValueError(f"count {count} < 1")
    total, _, height, width = frames.shape
    scale = min(1.0, HEIGHT / height, WIDTH / width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    kept = frames[np.linspace(0, total - 1, min(count, total)).round().astype(int)].transpose(0, 2, 3, 1)
    small = [cv2.resize(np.ascontiguousarray(frame), size, interpolation=cv2.INTER_AREA) for frame in kept]
    strip = cv2.cvtColor(np.concatenate(small, axis=1), cv2.COLOR_RGB2BGR)
    # Full colour resolution: with halved chroma, colours of neighbouring frames run into each other at the
    # seams.
    how = [cv2.IMWRITE_JPEG_QUALITY, quality]
    how += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    done, jpeg = cv2.imencode(".jpg", strip, how)
    if not done:
        raise ValueError(f"OpenCV cannot write a JPEG of {strip.shape[1]}x{strip.shape[0]} pixels")
    return Preview(jpeg.tobytes(), len(small), *size)


def write_retrieval_page(
    path: Path,
    *,
    title: str,
    results: Mapping[str, float],
    queries: Sequence[QueryRow],
    previews: Mapping[str, Preview],
    class_names: Sequence[str] = (),
    details: Sequence[tuple[str, str]] = (),
    total_queries: int | None = None,
) -> None:
    """Writes the page that shows queries and their nearest videos, playing.

    Args:
        path: of the HTML file; its folder exists.
        title: of the page.
        results: as in results.json: fractions "R@k", "knn", "chance"; "num_queries", "num_gallery",
            "centered". Keys that are missing are not shown; other keys are ignored.
        queries: in the order in which they are shown.
        previews: by the `video` of a query or hit. Each one that is used is embedded once.
        class_names: by label; without a name, label 3 is shown as "class 3".
        details: further (name, value) pairs, such as the checkpoint and the protocol.
        total_queries: when more were searched than are shown: their number, which the page then states.

    Raises:
        ValueError: when a video has no preview.
    """
    shown = [row.video for row in queries] + [hit.video for row in queries for hit in row.hits]
    if missing := sorted(set(shown) - previews.keys()):
        raise ValueError(f"{len(missing)} videos have no preview, the first: {missing[0]!r}")
    sprites = _number(previews[video] for video in shown)
    names = {
        label: _class_name(label, class_names) for label in sorted({row.label for row in queries} - {-1})
    }
    nearest = [_verdict(row.label, row.hits[0].label) for row in queries if row.hits]
    page = _ENVIRONMENT.get_template("retrieval.html").render(
        title=title,
        scores=[(_METRIC_NAMES.get(key, key), results[key]) for key in _rates(results)],
        details=[*_counts(results), *details],
        queries=queries,
        sprites=sprites,
        number={video: sprites[previews[video]] for video in shown},
        total=max(total_queries or 0, len(queries)),
        classes=names,
        judged=sum(verdict is not None for verdict in nearest),
        right=sum(verdict is True for verdict in nearest),
        class_name=lambda label: _class_name(label, class_names),
        verdict=_verdict,
    )
    _write(path, page)


def write_compare_page(
    path: Path,
    *,
    title: str,
    summary: str,
    runs: Mapping[str, Mapping[str, Mapping[str, float]]],
    curves: bytes | None = None,
    links: Sequence[tuple[str, str]] = (),
    strip: Sequence[tuple[str, Preview]] = (),
    details: Sequence[tuple[str, str]] = (),
) -> None:
    """Writes the page that compares runs, such as a random backbone with the trained one.

    Args:
        path: of the HTML file; its folder exists.
        title: of the page.
        summary: one paragraph: what was done.
        runs: name of the run -> name of the label set -> results as in results.json (fractions "R@1", "R@5",
            "R@10", "knn", "chance"). One table for each label set, one row for each run; with two or more
            runs a last row gives the last minus the first, in percentage points.
        curves: a PNG picture of the training.
        links: (text, file name relative to the page) of further pages.
        strip: (caption, preview) of some training videos.
        details: (name, value) pairs at the end: commands, seconds, versions.
    """
    tables = []
    for label_set in dict.fromkeys(name for run in runs.values() for name in run):
        rows = {run: results[label_set] for run, results in runs.items() if label_set in results}
        keys = [key for key in ("R@1", "R@5", "R@10", "knn") if any(key in row for row in rows.values())]
        first, *_, last = *rows.values(), *rows.values()
        gains = [last[key] - first[key] if key in first and key in last else None for key in keys]
        tables.append(
            {
                "name": label_set,
                "columns": [_METRIC_NAMES.get(key, key) for key in keys],
                "rows": [(run, [row.get(key) for key in keys]) for run, row in rows.items()],
                "gains": gains if len(rows) > 1 else [],
                "chance": last.get("chance"),
                "counts": _counts(last)[:2],
            }
        )
    sprites = _number(clip for _, clip in strip)
    page = _ENVIRONMENT.get_template("compare.html").render(
        title=title,
        summary=summary,
        tables=tables,
        curves=None if curves is None else base64.b64encode(curves).decode("ascii"),
        # Quoted, colon included: a file name with ? or # stays a file name, and no link has a scheme.
        links=[(text, quote(target, safe="/")) for text, target in links],
        strip=[(caption, sprites[clip]) for caption, clip in strip],
        sprites=sprites,
        details=details,
    )
    _write(path, page)


_METRIC_NAMES = {"knn": "kNN", "chance": "Chance"}


def _rates(results: Mapping[str, float]) -> list[str]:
    """The keys of results that are fractions of right answers, in the order of the table."""
    recalls = sorted((key for key in results if key.startswith("R@")), key=lambda key: int(key[2:]))
    return recalls + [key for key in ("knn", "chance") if key in results]


def _counts(results: Mapping[str, float]) -> list[tuple[str, str]]:
    """What was measured on, in words."""
    counts = [("num_queries", "Queries"), ("num_gallery", "Gallery")]
    pairs = [(name, f"{int(results[key]):,} videos") for key, name in counts if key in results]
    if "centered" in results:
        pairs.append(("Features", "centred" if results["centered"] else "not centred"))
    return pairs


def _number(previews: Iterable[Preview]) -> dict[Preview, int]:
    """Each distinct preview once, with the number that its CSS class has."""
    return {clip: number for number, clip in enumerate(dict.fromkeys(previews))}


def _class_name(label: int, class_names: Sequence[str]) -> str:
    if label < 0:
        return ""
    return class_names[label] if label < len(class_names) else f"class {label}"


def _verdict(query: int, hit: int) -> bool | None:
    """Whether the hit is of the query's class; None when that is not known."""
    return None if query < 0 or hit < 0 else query == hit


def _short(name: str, limit: int = 22) -> str:
    """The file's own name, its middle left out when it is long: beginnings and ends tell videos apart."""
    own = name.rstrip("/").rsplit("/", 1)[-1] or name
    if len(own) <= limit:
        return own
    tail = limit // 2
    return f"{own[: limit - tail - 1]}…{own[-tail:]}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def _points(difference: float | None) -> str:
    """A difference of fractions in percentage points, with its sign: a true minus, and none before zero."""
    return "–" if difference is None else f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")


def _write(path: Path, page: str) -> None:
    # File names on Linux may hold bytes that are no UTF-8; such a character is shown as "?", not an error.
    path.write_bytes(page.encode("utf-8", errors="replace"))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vidssl.viz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, points=_points, short=_short)
    return environment


_ENVIRONMENT = _environment()
