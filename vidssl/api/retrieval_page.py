"""Output of a retrieval: a page with playing videos, and a still image."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vidssl.api.format_results import format_clips
from vidssl.api.gradcam_maps import layers_of_maps, one_clip, pair_maps
from vidssl.api.measured_network import Subject
from vidssl.atomic import write_whole
from vidssl.data.column_store import Records
from vidssl.data.preview_frames import middle_frames
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.search import Neighbours
from vidssl.progress import progress
from vidssl.types import Frames, VideoRecord
from vidssl.viz.figure import png
from vidssl.viz.heat_maps import draw_heat
from vidssl.viz.pages import Hit, Preview, QueryRow, preview, write_retrieval_page
from vidssl.viz.retrieval_sheet import Shot, retrieval_sheet

_log = logging.getLogger(__name__)


def with_span(name: str, start: float | None, end: float | None) -> str:
    """Append the span of a video to its name, in seconds."""
    return f"{name} {span_text(start, end)}".rstrip()


def span_text(start: float | None, end: float | None) -> str:
    """Format a span in seconds, `4-5.2 s`, to hundredths; nothing for a whole video."""
    if start is end is None:
        return ""
    first, last = ("" if time is None else f"{time:.2f}".rstrip("0").rstrip(".") for time in (start or 0, end))
    return f"{first}-{last} s"


def write_page(
    out: Path,
    subject: Subject,
    results: Results,
    gallery: VideoList,
    query: VideoList,
    neighbours: Neighbours,
    shown: Sequence[int],
    hits: int,
    gradcam: str | None = None,
) -> None:
    """Write `index.html` and `retrieval.png` with the queries `shown` and their nearest videos.

    With `gradcam`, a layer or "" for the last one, the page has the maps of queries and videos for their similarity.
    """
    images = _Images(subject.test.fps)
    queries = [images.row(gallery, query, neighbours, n, hits) for n in shown]
    wanted = dict.fromkeys(video for row in queries for video in (row.video, *(hit.video for hit in row.hits)))
    bar = progress(wanted, title="page", unit="video", leave=False)
    previews: dict[VideoRecord | str, Preview] = {video: preview(images.frames(video)) for video in bar}
    if gradcam is not None:
        queries = _with_maps(subject, queries, previews, gradcam)
    if images.missing:
        first = next(iter(images.missing.values()))
        _log.warning("%d videos of the page cannot be decoded, the first: %s", len(images.missing), first)
    test, origin = subject.test, subject.origin
    source = "" if test.short_side is None else f" of a short side of {test.short_side}"
    missing = {each["path"]: each["reason"] for each in results["missing_queries"] + results["missing_gallery"]}
    same = query.path == gallery.path
    duplicates = results["duplicates"]
    windows = results["windows"]
    details = {
        "Windows": "" if windows is None else f"{windows['window']:g} s, one every {windows['stride']:g} s",
        "Features": "centred" if results.get("centered") else "not centred",
        "Checkpoint": origin["path"] if "step" not in origin else f"{origin['path']}, step {origin['step']}",
        "Backbone": subject.name if subject.run is None else str(subject.run.backbone.name),
        "Protocol": f"{format_clips(dict(test))}{source}, {test.clip.frames} frames each",
        "Duplicates": f"{duplicates} pair{'s' * (duplicates > 1)}{', ignored' * results['drop_duplicates']}"
        if duplicates
        else "",
        "Note": results.get("note", ""),
        "Cannot be decoded": f"{len(images.missing)} videos, grey here" if images.missing else "",
    }
    try:
        if queries:
            write_whole(out / "retrieval.png", _sheet(queries, gallery, images))
        write_retrieval_page(
            out / "index.html",
            title=f"Retrieval{'' if same else f': {_title(query)}'} in {_title(gallery)}",
            results={name: value for name, value in results.items() if isinstance(value, int | float)},
            queries=queries,
            previews=previews,
            class_names=gallery.classes,
            details=[(name, value) for name, value in details.items() if value],
            total_queries=len(query),
            gallery_unit="videos" if windows is None else "windows",
            left_out=[missing[path] for path in sorted(missing)],
        )
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}") from None


def _with_maps(
    subject: Subject, queries: Sequence[QueryRow], previews: dict[VideoRecord | str, Preview], layer: str
) -> list[QueryRow]:
    """Add the maps of queries and their hits to the previews; pairs of which a video cannot be decoded have none."""
    one = one_clip(subject)
    one = replace(one, test=one.test.model_copy(update={"allow_missing": True}))
    pairs = [(row.video, hit.video) for row in queries for hit in row.hits]
    videos, others = (
        VideoList(Path("the page"), Records(Path(), [pair[side] for pair in pairs]), ()) for side in (0, 1)
    )
    maps: dict[tuple[VideoRecord, VideoRecord], tuple[str, str]] = {}
    found = pair_maps(one, videos, others, layers_of_maps(one, layer)[0]) if pairs else ()
    for n, mine, theirs, _ in progress(found, title="maps", unit="pair", total=len(pairs), leave=False):
        keys = f"{pairs[n]} query", f"{pairs[n]} video"
        previews |= {
            key: preview(draw_heat(clip.frames, clip.map)) for key, clip in zip(keys, (mine, theirs), strict=True)
        }
        maps[pairs[n]] = keys
    return [
        replace(row, hits=tuple(replace(hit, maps=maps.get((row.video, hit.video))) for hit in row.hits))
        for row in queries
    ]


def _title(videos: VideoList) -> str:
    return f"{videos.path.parent.name}/{videos.path.stem}".lstrip("/")


class _Images:
    """The videos of a page; those that cannot be decoded are grey."""

    def __init__(self, fps: float | None) -> None:
        self._fps = fps  # as in `middle_frames`
        self.missing: dict[VideoRecord, str] = {}  # and the reason

    def row(self, gallery: VideoList, query: VideoList, neighbours: Neighbours, n: int, hits: int) -> QueryRow:
        """Describe a query and its nearest videos."""
        record = query.records[n]
        pairs = zip(neighbours.index[n, :hits].tolist(), neighbours.similarity[n, :hits].tolist(), strict=True)
        found = [(gallery.records[g], gallery.names[g], value) for g, value in pairs if value > -np.inf]
        return QueryRow(
            record,
            with_span(query.names[n], record.start, record.end),
            record.label,
            tuple(
                Hit(hit, with_span(name, hit.start, hit.end), hit.label, value, span=span_text(hit.start, hit.end))
                for hit, name, value in found
            ),
            span_text(record.start, record.end),
        )

    def frames(self, video: VideoRecord) -> Frames:
        """Decode the middle of a video."""
        try:
            return middle_frames(video, self._fps)
        except DataError as error:
            self.missing[video] = str(error)
            return np.full((1, 3, 96, 96), 225, np.uint8)


def _sheet(queries: list[QueryRow], gallery: VideoList, images: _Images) -> bytes:
    """Draw six of the queries with their six nearest videos, for places that cannot show a page."""

    def shot(video: QueryRow | Hit, hit: bool | None) -> Shot:
        named = 0 <= video.label < len(gallery.classes)
        caption = gallery.classes[video.label] if named else Path(video.name).name
        return Shot(images.frames(video.video), caption, hit)

    def row_of(row: QueryRow) -> list[Shot]:
        verdicts = [None if -1 in (row.label, hit.label) else row.label == hit.label for hit in row.hits[:6]]
        return [shot(row, None), *map(shot, row.hits, verdicts)]

    return png(retrieval_sheet([row_of(row) for row in queries[:: max(1, len(queries) // 6)][:6]]))
