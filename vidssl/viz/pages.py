"""HTML pages without a server: retrieval results, and the comparison of runs."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from vidssl.atomic import write_whole
from vidssl.types import Frames

WIDTH, HEIGHT = 160, 96  # pixels; larger frames are shrunk to fit
GROWN = 128  # pixels; smaller frames are enlarged by a whole number to at most this height


@dataclass(frozen=True)
class Preview:
    """A video as one JPEG with small frames side by side, which the page plays."""

    jpeg: bytes
    count: int  # frames in the strip
    width: int  # pixels, of one frame in the strip
    height: int

    @property
    def base64(self) -> str:
        """The JPEG for a data URI."""
        return base64.b64encode(self.jpeg).decode("ascii")

    @property
    def zoom(self) -> int:
        """Screen pixels for each pixel; whole, so that tiny videos stay sharp."""
        return max(1, min(GROWN // self.height, WIDTH // self.width))

    @property
    def shown_width(self) -> int:
        """Size on the page, screen pixels."""
        return self.width * self.zoom

    @property
    def shown_height(self) -> int:
        """Size on the page, screen pixels."""
        return self.height * self.zoom


@dataclass(frozen=True)
class Hit:
    """One video found for a query."""

    video: str  # key of its preview
    name: str  # such as the path in the list
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
    """Make the preview of one video.

    Args:
        frames: (T, 3, H, W) uint8 RGB, T >= 1.
        count: Maximum number of frames, evenly spaced.
        quality: Of the JPEG, 1 to 100.

    Raises:
        ValueError: The frames have another shape or type.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[1] != 3 or frames.size == 0:
        raise ValueError(f"frames are (T, 3, H, W) uint8, got {frames.shape} {frames.dtype}")
    total, _, height, width = frames.shape
    scale = min(1.0, HEIGHT / height, WIDTH / width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    kept = frames[np.linspace(0, total - 1, min(count, total)).round().astype(int)].transpose(0, 2, 3, 1)
    small = [cv2.resize(np.ascontiguousarray(frame), size, interpolation=cv2.INTER_AREA) for frame in kept]
    strip = cv2.cvtColor(np.concatenate(small, axis=1), cv2.COLOR_RGB2BGR)
    # Full colour resolution: subsampled chroma would mix colours of neighbouring frames at the seams.
    how = [cv2.IMWRITE_JPEG_QUALITY, quality]
    how += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return Preview(cv2.imencode(".jpg", strip, how)[1].tobytes(), len(small), *size)


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
    """Write a page with queries and their nearest videos, playing.

    Args:
        path: The HTML file.
        title: Of the page.
        results: As in results.json: fractions "R@k", "knn", "chance"; "num_queries", "num_gallery", "centered". All
            are optional; other keys are ignored.
        queries: In their order on the page.
        previews: By the `video` of a query or hit; each is embedded once.
        class_names: By label; without a name label 3 is "class 3".
        details: Further (name, value) pairs, such as the checkpoint.
        total_queries: Number of queries searched, if the page has only some of them.

    Raises:
        ValueError: A video has no preview.
    """
    shown = [row.video for row in queries] + [hit.video for row in queries for hit in row.hits]
    if missing := sorted(set(shown) - previews.keys()):
        raise ValueError(f"{len(missing)} videos have no preview, the first: {missing[0]!r}")
    sprites = _number(previews[video] for video in shown)
    names = {label: _class_name(label, class_names) for label in sorted({row.label for row in queries} - {-1})}
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
    """Write a page that compares runs, such as a random with the trained backbone.

    Args:
        path: The HTML file.
        title: Of the page.
        summary: One paragraph: what was done.
        runs: Run -> label set -> results as in results.json (fractions "R@1", "R@5", "R@10", "knn", "chance"). One
            table for each label set with a row for each run; with several runs the last row is the last minus the
            first, in percentage points.
        curves: Training curves, a PNG file.
        links: (text, file name relative to the page) of further pages.
        strip: (caption, preview) of some training videos.
        details: (name, value) pairs at the end, such as commands, seconds, versions.
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
        # Quoted, colon included: ? and # in file names keep their meaning, and no link has a scheme.
        links=[(text, quote(target, safe="/")) for text, target in links],
        strip=[(caption, sprites[clip]) for caption, clip in strip],
        sprites=sprites,
        details=details,
    )
    _write(path, page)


_METRIC_NAMES = {"knn": "kNN", "chance": "Chance"}


def _rates(results: Mapping[str, float]) -> list[str]:
    """Keys of accuracies, in the order of the table."""
    recalls = sorted((key for key in results if key.startswith("R@")), key=lambda key: int(key[2:]))
    return recalls + [key for key in ("knn", "chance") if key in results]


def _counts(results: Mapping[str, float]) -> list[tuple[str, str]]:
    """Numbers of videos, and whether features are centred."""
    counts = [("num_queries", "Queries"), ("num_gallery", "Gallery")]
    pairs = [(name, f"{int(results[key]):,} videos") for key, name in counts if key in results]
    if "centered" in results:
        pairs.append(("Features", "centred" if results["centered"] else "not centred"))
    return pairs


def _number(previews: Iterable[Preview]) -> dict[Preview, int]:
    """Number each distinct preview, for its CSS class."""
    return {clip: number for number, clip in enumerate(dict.fromkeys(previews))}


def _class_name(label: int, class_names: Sequence[str]) -> str:
    if label < 0:
        return ""
    return class_names[label] if label < len(class_names) else f"class {label}"


def _verdict(query: int, hit: int) -> bool | None:
    """Whether the hit has the query's class; None if unknown."""
    return None if query < 0 or hit < 0 else query == hit


def _short(name: str, limit: int = 22) -> str:
    """File name, with its middle left out if it is long: videos often differ at the start or end."""
    own = name.rstrip("/").rsplit("/", 1)[-1] or name
    if len(own) <= limit:
        return own
    tail = limit // 2
    return f"{own[: limit - tail - 1]}…{own[-tail:]}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def _points(difference: float | None) -> str:
    """Difference of fractions in percentage points, with its sign; 0 is +0.0."""
    return "–" if difference is None else f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")


def _write(path: Path, page: str) -> None:
    # File names on Linux may hold bytes that are not UTF-8: they become "?".
    write_whole(path, page.encode("utf-8", errors="replace"))


_ENVIRONMENT = Environment(
    loader=PackageLoader("vidssl.viz"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_ENVIRONMENT.filters.update(percent=_percent, points=_points, short=_short)
