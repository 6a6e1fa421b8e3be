"""The page of a retrieval: queries and their nearest videos, which play, can be filtered by text, and open."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vidssl.base.atomic import write_whole
from vidssl.base.errors import how_many
from vidssl.base.types import VideoRecord
from vidssl.page.previews import Preview
from vidssl.page.render import address_from, render_page

PREVIEWS = "previews"  # folder beside the page
_TITLES = {"knn": "kNN", "majority": "Majority"}  # of columns; others have their own names


class StoredPreview(NamedTuple):
    """A preview in a file beside the page, which then stays small."""

    file: str  # relative to the page
    frames: int  # side by side
    width: int  # pixels, of one frame on the page
    height: int
    enlarged: int  # 1: it is shown larger than it is stored


@dataclass(frozen=True)
class FoundVideo:
    """A video of the page, or a moment of one."""

    name: str  # such as the path in its list
    record: VideoRecord
    preview: StoredPreview | None = None  # None: it cannot be decoded


class Hit(NamedTuple):
    """One video found for a query."""

    video: int  # index in the videos of the page
    similarity: float
    is_copy: bool = False  # of the query
    maps: tuple[StoredPreview, ...] = ()  # for this similarity: of the query and of this video


class QueryRow(NamedTuple):
    """One query and its nearest videos, nearest first."""

    video: int  # index in the videos of the page
    hits: Sequence[Hit]
    examples: Sequence[int] = ()  # likewise, of a query of several examples the others


def store_preview(preview: Preview, folder: Path) -> StoredPreview:
    """Write a preview into the folder of the page; its name is a hash of its content, so equal ones are one file."""
    file = f"{PREVIEWS}/{_stem(preview.jpeg)}.jpg"
    if not (folder / file).exists():
        write_whole(folder / file, preview.jpeg)
    return StoredPreview(file, preview.count, *preview.shown, enlarged=int(preview.shown[0] > preview.width))


def remove_other_previews(folder: Path, kept: Iterable[StoredPreview]) -> None:
    """Remove the previews of earlier pages from the folder of a page; what is not named by its hash is not one."""
    names = {preview.file for preview in kept}
    for page in pages_of(folder):  # those of earlier queries
        names |= {*re.findall(rf"{PREVIEWS}/[0-9a-f]{{16}}\.jpg", page.read_text(encoding="utf-8", errors="replace"))}
    for path in (folder / PREVIEWS).glob(f"{'[0-9a-f]' * 16}.jpg"):
        if f"{PREVIEWS}/{path.name}" not in names and path.stem == _stem(path.read_bytes()):
            path.unlink()


def pages_of(folder: Path) -> list[Path]:
    """Return the pages of the queries of a folder, the newest first."""
    pages = [path for path in folder.glob(f"?*-{'[0-9a-f]' * 8}.html") if path.with_name(f"{path.stem}.json").exists()]
    return sorted(pages, key=os.path.getmtime, reverse=True)


def _stem(jpeg: bytes) -> str:
    return hashlib.sha256(jpeg).hexdigest()[:16]


def write_retrieval_page(
    path: Path,
    *,
    title: str,
    results: Mapping[str, Any],
    videos: Sequence[FoundVideo],
    queries: Sequence[QueryRow],
    class_names: Sequence[str] = (),
    network: str = "",
    protocol: Sequence[tuple[str, str]] = (),
    unread: Sequence[tuple[str, str]] = (),
    copies: Sequence[Sequence[str]] = (),
    earlier: Sequence[Path] | None = (),
) -> None:
    """Write a page with queries and their nearest videos, playing. Their previews are in files beside it.

    Args:
        path: The page; links to videos are relative to its folder.
        title: Its heading.
        results: Those of results.json.
        videos: What queries and hits are; label 3 without a name is "class 3".
        queries: The rows of the page, which it draws as one scrolls.
        class_names: By label.
        network: Its name.
        protocol: Names and values of how it was measured, folded away.
        unread: Name and reason of each video that was left out or cannot be shown.
        copies: Names of videos that are equal, by group.
        earlier: The pages of other queries in the folder, the newest first; None: the page links to index.html instead.
    """
    nearest = [(videos[row.video].record.label, videos[row.hits[0].video].record.label) for row in queries if row.hits]
    pairs = [labels for labels in nearest if min(labels) >= 0]
    keys = [key for key in results if key.startswith("R@")] + [key for key in _TITLES if key in results]
    previews = [video.preview for video in videos if video.preview is not None]
    labels = {video.record.label for video in videos} - {-1}
    classes = {label: class_names[label] if label < len(class_names) else f"class {label}" for label in labels}
    render_page(
        path,
        Path(__file__).with_name("retrieval.html"),
        sprites={},
        title=title,
        scores=[(_TITLES.get(key, key), results[key]) for key in keys],
        details=_details(results, network),
        protocol=protocol,
        note=results.get("note", ""),
        unread=[(name, reason.removeprefix(f"{name}: ")) for name, reason in unread],
        copies=copies,
        earlier=earlier and [(address_from(path.parent, file), file.stem[:-9]) for file in earlier],
        count=len(queries),
        total=results.get("num_queries", len(queries)),
        mapped=any(hit.maps for row in queries for hit in row.hits),
        classes={label: classes[label] for label in sorted({videos[row.video].record.label for row in queries} - {-1})},
        judged=len(pairs),
        right=sum(query == hit for query, hit in pairs),
        cell=max((preview.width for preview in previews), default=96),
        stage=max((preview.height for preview in previews), default=96),
        data={
            **_rows_of_videos(videos, path.parent),
            "queries": [[row.video, [*map(_row_of_hit, row.hits)], *row.examples] for row in queries],
            "classes": {str(label): name for label, name in classes.items()},
        },
    )


def _rows_of_videos(videos: Sequence[FoundVideo], folder: Path) -> dict[str, list[list[object]]]:
    """Return the files, and the moments of them that are shown: what the script of the page reads."""
    numbers: dict[tuple[str, str], int] = {}  # of path and name
    rows: list[list[object]] = []
    for video in videos:
        number = numbers.setdefault((video.record.path, video.name), len(numbers))
        span = video.record.span
        moment = span and f"#t={span[:-2].replace('-', ',').rstrip(',')}"  # which browsers play
        rows.append([number, video.record.label, span, moment, video.preview])
    return {
        "files": [[name, str(Path(path).absolute()), address_from(folder, path)] for path, name in numbers],
        "videos": rows,
    }


def _row_of_hit(hit: Hit) -> list[object]:
    return [hit.video, round(hit.similarity, 3), int(hit.is_copy), *hit.maps]


def _details(results: Mapping[str, Any], network: str) -> list[tuple[str, str]]:
    windows = results.get("windows")
    gallery = how_many(results["num_gallery"], "video" if windows is None else "window")
    if windows is not None:
        gallery += f" of {how_many(results['num_gallery_files'], 'file')}"
    details = {
        "Queries": how_many(results["num_queries"], "video") if "num_queries" in results else "",
        "Gallery": gallery,
        "Windows": "" if windows is None else f"{windows['window']:g} s, one every {windows['stride']:g} s",
        "Labels": results.get("labels", "").removeprefix("labels: "),
        "Network": network,
    }
    return [(name, value) for name, value in details.items() if value]
