"""The page of a retrieval: queries and their nearest videos, which play, can be filtered by text, and open."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from vidssl.base.atomic import write_whole
from vidssl.page.previews import Preview
from vidssl.page.render import render_page

PREVIEWS = "previews"  # folder beside the page
_TITLES = {"knn": "kNN", "majority": "Majority"}  # of columns; others have their own names


@dataclass(frozen=True)
class StoredPreview:
    """A preview in a file beside the page, which then stays small."""

    file: str  # relative to the page
    count: int  # frames, side by side
    width: int  # pixels, of one frame on the page
    height: int
    enlarged: bool  # it is shown larger than it is stored


@dataclass(frozen=True)
class FoundVideo:
    """A video of the page, or a moment of one."""

    name: str  # such as the path in its list
    path: str  # of the file
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds; None: the start of the video
    end: float | None = None
    preview: StoredPreview | None = None  # None: it cannot be decoded

    @property
    def span(self) -> str:
        """The moment as text; nothing for a whole video."""
        return span_text(self.start, self.end)


@dataclass(frozen=True)
class Hit:
    """One video found for a query."""

    video: int  # index in the videos of the page
    similarity: float
    is_copy: bool = False  # of the query
    maps: tuple[StoredPreview, StoredPreview] | None = None  # for this similarity: of the query and of this video


@dataclass(frozen=True)
class QueryRow:
    """One query and its nearest videos, nearest first."""

    video: int  # index in the videos of the page
    hits: tuple[Hit, ...]


def span_text(start: float | None, end: float | None) -> str:
    """Format a span in seconds, `4-5.2 s`, to hundredths; nothing for a whole video."""
    if start is end is None:
        return ""
    return f"{_seconds(start or 0)}-{'' if end is None else _seconds(end)} s"


def store_preview(preview: Preview, folder: Path) -> StoredPreview:
    """Write a preview into the folder of the page; its name is a hash of its content, so equal ones are one file."""
    file = f"{PREVIEWS}/{_stem(preview.jpeg)}.jpg"
    if not (folder / file).exists():
        write_whole(folder / file, preview.jpeg)
    return StoredPreview(file, preview.count, *preview.shown, enlarged=preview.shown[0] > preview.width)


def remove_other_previews(folder: Path, kept: Iterable[StoredPreview]) -> None:
    """Remove the previews of earlier pages from the folder of a page; what is not named by its hash is not one."""
    names = {preview.file for preview in kept}
    for path in (folder / PREVIEWS).glob(f"{'[0-9a-f]' * 16}.jpg"):
        if f"{PREVIEWS}/{path.name}" not in names and path.stem == _stem(path.read_bytes()):
            path.unlink()


def _stem(jpeg: bytes) -> str:
    return hashlib.sha256(jpeg).hexdigest()[:16]


def write_retrieval_page(
    path: Path,
    *,
    title: str,
    results: Mapping[str, float],
    videos: Sequence[FoundVideo],
    queries: Sequence[QueryRow],
    class_names: Sequence[str] = (),
    details: Sequence[tuple[str, str]] = (),
    protocol: Sequence[tuple[str, str]] = (),
    note: str = "",
    unread: Sequence[tuple[str, str]] = (),
    copies: Sequence[Sequence[str]] = (),
    num_queries: int | None = None,
    gallery_unit: str = "videos",
) -> None:
    """Write a page with queries and their nearest videos, playing. Their previews are in files beside it.

    Args:
        path: The page; links to videos are relative to its folder.
        title: Its heading.
        results: Those of results.json.
        videos: What queries and hits are; label 3 without a name is "class 3".
        queries: The rows of the page, which it draws as one scrolls.
        class_names: By label.
        details: Names and values at its head.
        protocol: Names and values of how it was measured, folded away.
        note: A sentence below the accuracies.
        unread: Name and reason of each video that was left out or cannot be shown.
        copies: Names of videos that are equal, by group.
        num_queries: Number of queries searched, if the page has only some of them.
        gallery_unit: What the gallery consists of.
    """
    nearest = [(videos[row.video].label, videos[row.hits[0].video].label) for row in queries if row.hits]
    pairs = [labels for labels in nearest if min(labels) >= 0]
    keys = [key for key in results if key.startswith("R@")] + [key for key in _TITLES if key in results]
    previews = [video.preview for video in videos if video.preview is not None]
    labels = {video.label for video in videos} - {-1}
    classes = {label: class_names[label] if label < len(class_names) else f"class {label}" for label in labels}
    render_page(
        path,
        Path(__file__).with_name("retrieval.html"),
        sprites={},
        title=title,
        scores=[(_TITLES.get(key, key), results[key]) for key in keys],
        details=[*_counts(results, gallery_unit), *details],
        protocol=protocol,
        note=note,
        unread=[(name, reason.removeprefix(f"{name}: ")) for name, reason in unread],
        copies=copies,
        count=len(queries),
        total=num_queries or len(queries),
        mapped=any(hit.maps for row in queries for hit in row.hits),
        classes={label: classes[label] for label in sorted({videos[row.video].label for row in queries} - {-1})},
        judged=len(pairs),
        right=sum(query == hit for query, hit in pairs),
        cell=max((preview.width for preview in previews), default=96),
        stage=max((preview.height for preview in previews), default=96),
        data={
            **_rows_of_videos(videos, path.parent),
            "queries": [[row.video, [_row_of_hit(hit) for hit in row.hits]] for row in queries],
            "classes": {str(label): name for label, name in classes.items()},
        },
    )


def _rows_of_videos(videos: Sequence[FoundVideo], folder: Path) -> dict[str, list[list[object]]]:
    """Return the files, and the moments of them that are shown: what the script of the page reads."""
    paths = dict.fromkeys((video.path, video.name) for video in videos)
    numbers = {path_and_name: n for n, path_and_name in enumerate(paths)}
    rows: list[list[object]] = []
    for video in videos:
        number = numbers[video.path, video.name]
        rows.append([number, video.label, video.span, _fragment(video), _row_of_preview(video.preview)])
    return {"files": [[name, str(Path(path).absolute()), _link(path, folder)] for path, name in paths], "videos": rows}


def _row_of_hit(hit: Hit) -> list[object]:
    maps = [_row_of_preview(preview) for preview in hit.maps] if hit.maps else []
    return [hit.video, float(f"{hit.similarity:.3f}"), int(hit.is_copy), *maps]


def _row_of_preview(preview: StoredPreview | None) -> list[object] | None:
    if preview is None:
        return None
    return [preview.file, preview.count, preview.width, preview.height, int(preview.enlarged)]


def _link(path: str, folder: Path) -> str:
    """The address of a file from the page, so that both may be moved together; "" for what no browser can open."""
    # As the paths are written: a browser resolves `..` in the text of an address, and follows no links for it.
    return quote(os.fsencode(os.path.relpath(path, folder))) if os.path.lexists(path) else ""


def _fragment(video: FoundVideo) -> str:
    """The moment in the address of a video, from which browsers play it."""
    if video.start is video.end is None:
        return ""
    return f"#t={_seconds(video.start or 0)}{'' if video.end is None else ',' + _seconds(video.end)}"


def _seconds(time: float) -> str:
    return f"{time:.2f}".rstrip("0").rstrip(".")


def _counts(results: Mapping[str, float], gallery_unit: str) -> list[tuple[str, str]]:
    names = {"num_queries": ("Queries", "videos"), "num_gallery": ("Gallery", gallery_unit)}
    return [(name, f"{int(results[key]):,} {unit}") for key, (name, unit) in names.items() if key in results]
