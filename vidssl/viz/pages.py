"""HTML pages without a server: of a retrieval, of compared runs, of all analyses; and what every page is made of."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from vidssl.atomic import write_whole
from vidssl.types import Frames, VideoRecord
from vidssl.viz.figure import numbered_names

WIDTH, HEIGHT = 160, 96  # pixels; larger frames are shrunk to fit
GROWN = 128  # pixels; smaller frames are enlarged by a whole number to at most this height
_FRAMES = 8  # of a preview, evenly spaced
_TITLES = {"knn": "kNN", "chance": "Chance"}  # of columns; others have their own names


@dataclass(frozen=True)
class Preview:
    """A video as one JPEG with small frames side by side, which the page plays."""

    jpeg: bytes
    count: int  # frames in the strip
    width: int  # pixels, of one frame in the strip
    height: int

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height on the page; tiny videos are enlarged by a whole number, so that they stay sharp."""
        zoom = max(1, min(GROWN // self.height, WIDTH // self.width))
        return self.width * zoom, self.height * zoom


@dataclass(frozen=True)
class Hit:
    """One video found for a query."""

    video: VideoRecord  # key of its preview
    name: str  # such as the path in the list, with the span
    label: int  # -1: unknown
    similarity: float
    maps: tuple[str, str] | None = None  # keys of the previews of their maps for this similarity: query's and video's
    span: str = ""  # the end of the name, never cut: `4-5.2 s`


@dataclass(frozen=True)
class QueryRow:
    """One query and its nearest videos, nearest first."""

    video: VideoRecord  # key of its preview
    name: str
    label: int  # -1: unknown
    hits: tuple[Hit, ...]
    span: str = ""  # as in `Hit`


@dataclass(frozen=True)
class Section:
    """One analysis on the page of a network."""

    name: str  # of its folder beside the page
    title: str
    about: str  # what it measures
    text: str | None = None  # its table, as the terminal shows it
    image: bytes | None = None  # PNG
    is_chart: bool = True  # of black on white, which dark pages invert
    link: tuple[str, str] | None = None  # text and file
    reason: str | None = None  # why it was left out


def preview(
    frames: Frames, width: int = WIDTH, height: int = HEIGHT, count: int = _FRAMES, quality: int = 75
) -> Preview:
    """Make the preview of one video from its frames (T, 3, H, W): `count` of them, shrunk to fit width and height."""
    total = len(frames)
    small = shrunk(frames[np.linspace(0, total - 1, min(count, total)).round().astype(int)], width, height)
    size = small[0].shape[1], small[0].shape[0]
    strip = cv2.cvtColor(np.concatenate(small, axis=1), cv2.COLOR_RGB2BGR)
    # Full colour resolution: subsampled chroma would mix colours of neighbouring frames at the seams.
    how = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return Preview(cv2.imencode(".jpg", strip, how)[1].tobytes(), len(small), *size)


def shrunk(frames: Frames, width: int, height: int) -> list[NDArray[np.uint8]]:
    """Shrink frames (T, 3, H, W) to fit width and height: images (H, W, 3). Smaller ones stay as they are."""
    own_height, own_width = frames.shape[2:]
    scale = min(1.0, height / own_height, width / own_width)
    size = max(1, round(own_width * scale)), max(1, round(own_height * scale))
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    return [np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8) for image in images]


def write_retrieval_page(
    path: Path,
    *,
    title: str,
    results: Mapping[str, float],
    queries: Sequence[QueryRow],
    previews: Mapping[VideoRecord | str, Preview],
    class_names: Sequence[str] = (),
    details: Sequence[tuple[str, str]] = (),
    total_queries: int | None = None,
    gallery_unit: str = "videos",
) -> None:
    """Write a page with queries and their nearest videos, playing.

    `results` are those of results.json. Each preview, by the `video` of queries and hits, is embedded once. Label 3
    without a name is "class 3". `total_queries` is the number of queries searched, if the page has only some of them;
    the gallery consists of `gallery_unit`.
    """
    hits = [hit for row in queries for hit in row.hits]
    videos: list[VideoRecord | str] = [*(row.video for row in queries), *(hit.video for hit in hits)]
    videos += [key for hit in hits for key in hit.maps or ()]
    nearest = [_verdict(row.label, row.hits[0].label) for row in queries if row.hits]
    keys = [key for key in results if key.startswith("R@")] + [key for key in _TITLES if key in results]

    def class_name(label: int) -> str:
        return class_names[label] if label < len(class_names) else f"class {label}"

    render_page(
        path,
        "retrieval.html",
        title=title,
        scores=[(_TITLES.get(key, key), results[key]) for key in keys],
        details=[*_counts(results, gallery_unit), *details],
        queries=queries,
        sprites=number_previews(previews[video] for video in videos),
        previews=previews,
        total=total_queries or len(queries),
        mapped=any(hit.maps for hit in hits),
        classes={label: class_name(label) for label in sorted({row.label for row in queries} - {-1})},
        judged=sum(verdict is not None for verdict in nearest),
        right=sum(verdict is True for verdict in nearest),
        class_name=class_name,
        verdict=_verdict,
    )


def write_report_page(
    path: Path, *, title: str, details: Sequence[tuple[str, str]], sections: Sequence[Section]
) -> None:
    """Write a page with the analyses of a network; `details` are names and values at its head."""
    render_page(path, "report.html", title=title, details=details, sections=sections, sprites={})


def _counts(results: Mapping[str, float], gallery_unit: str = "videos") -> list[tuple[str, str]]:
    names = {"num_queries": ("Queries", "videos"), "num_gallery": ("Gallery", gallery_unit)}
    return [(name, f"{int(results[key]):,} {unit}") for key, (name, unit) in names.items() if key in results]


def number_previews(previews: Iterable[Preview]) -> dict[Preview, int]:
    """Number each distinct preview, for its CSS class."""
    return {clip: number for number, clip in enumerate(dict.fromkeys(previews))}


def _verdict(query: int, hit: int) -> bool | None:
    """Whether the hit has the query's class; None if unknown."""
    return None if query < 0 or hit < 0 else query == hit


def _short(name: str, limit: int = 20) -> str:
    """File name, with its middle left out if it is long: videos often differ at the start or end."""
    own = name.rstrip("/").rsplit("/", 1)[-1] or name
    tail = limit // 2
    return own if len(own) <= limit else f"{own[: limit - tail - 1]}…{own[-tail:]}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def _points(difference: float | None) -> str:
    """Difference of fractions in percentage points, with its sign; 0 is +0.0."""
    return "–" if difference is None else f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def render_page(path: Path, template: str, **content: object) -> None:
    """Render one of the templates, and write the page."""
    environment = Environment(
        loader=PackageLoader("vidssl.viz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        numbered_names=numbered_names, percent=_percent, points=_points, short=_short, base64=_base64
    )
    page = environment.get_template(template).render(content)
    # File names on Linux may hold bytes that are not UTF-8: they become "?".
    write_whole(path, page.encode("utf-8", errors="replace"))
