"""Output of a retrieval: a page with playing videos, and a still image."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from vidssl.api.format_results import format_clips
from vidssl.api.gradcam_maps import one_clip, pair_maps
from vidssl.api.measured_network import Subject
from vidssl.atomic import write_whole
from vidssl.data.column_store import Records
from vidssl.data.preview_frames import middle_frames
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.search import Neighbours
from vidssl.progress import progress
from vidssl.types import VideoRecord
from vidssl.viz.figure import png
from vidssl.viz.heat_maps import draw_heat
from vidssl.viz.pages import preview
from vidssl.viz.retrieval_page import (
    FoundVideo,
    Hit,
    QueryRow,
    StoredPreview,
    remove_other_previews,
    span_text,
    store_preview,
    write_retrieval_page,
)
from vidssl.viz.retrieval_sheet import Shot, retrieval_sheet
from vidssl.worker_pool import ItemGuard, ordered

_log = logging.getLogger(__name__)
_SHEET = 6  # rows of the still image, and neighbours in a row


def with_span(name: str, start: float | None, end: float | None) -> str:
    """Append the span of a video to its name, in seconds."""
    return f"{name} {span_text(start, end)}".rstrip()


def write_page(
    out: Path,
    subject: Subject,
    results: Results,
    gallery: VideoList,
    query: VideoList,
    neighbours: Neighbours,
    copies: Sequence[tuple[int, int]],
    shown: Sequence[int],
    hits: int,
    gradcam: str | None = None,
) -> None:
    """Write `index.html`, its previews and `retrieval.png` with the queries `shown` and their nearest videos.

    `copies` are pairs of a query and a gallery row that are equal. With `gradcam`, a layer, the page has the maps of
    queries and videos for their similarity.
    """
    numbers: dict[VideoRecord, int] = {}
    names: list[str] = []

    def number(videos: VideoList, row: int) -> int:
        if (record := videos.records[row]) not in numbers:
            numbers[record] = len(names)
            names.append(videos.names[row])
        return numbers[record]

    equal, queries = {*copies}, []
    for n in shown:
        pairs = zip(neighbours.index[n, :hits].tolist(), neighbours.similarity[n, :hits].tolist(), strict=True)
        found = tuple(Hit(number(gallery, g), value, (n, g) in equal) for g, value in pairs if value > -np.inf)
        queries.append(QueryRow(number(query, n), found))
    records = [*numbers]
    stored, reasons = _store_previews(records, out, subject)
    if reasons:
        _log.warning(
            "%d videos of the page cannot be decoded, the first: %s", len(reasons), next(iter(reasons.values()))
        )
    if gradcam is not None:
        queries = _with_maps(subject, queries, records, out, gradcam)
    videos = [
        FoundVideo(name, record.path, record.label, record.start, record.end, preview)
        for name, record, preview in zip(names, records, stored, strict=True)
    ]
    same = query.path == gallery.path
    # The videos that could not be read were not searched; of those that were, an index may outlive the file.
    unread = dict.fromkeys((entry["path"], entry["reason"]) for entry in _missing(results))
    unread |= dict.fromkeys((names[n], reason) for n, reason in reasons.items())
    windows = results["windows"]
    cut = "" if windows is None else f"{windows['window']:g} s, one every {windows['stride']:g} s"
    details = {"Windows": cut, "Network": subject.name}
    try:
        if queries:
            write_whole(out / "retrieval.png", _sheet(queries, videos, records, subject.test.fps, gallery.classes))
        write_retrieval_page(
            out / "index.html",
            title=f"Nearest videos{'' if same else f' of {_title(query)}'} in {_title(gallery)}",
            results={name: value for name, value in results.items() if isinstance(value, int | float)},
            videos=videos,
            queries=queries,
            class_names=gallery.classes,
            details=[(name, value) for name, value in details.items() if value],
            protocol=_protocol(subject, results),
            note=results.get("note", ""),
            unread=[*unread],
            copies=_groups(copies, query, gallery),
            num_queries=len(query),
            gallery_unit="videos" if windows is None else "windows",
        )
        maps = [each for row in queries for hit in row.hits for each in hit.maps or ()]
        remove_other_previews(out, [*filter(None, stored), *maps])
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}") from None


def _store_previews(
    records: Sequence[VideoRecord], out: Path, subject: Subject
) -> tuple[list[StoredPreview | None], dict[int, str]]:
    """Decode the middle of each video and write its preview; the second result is why others have none, by row."""

    def store(n: int, guard: ItemGuard) -> StoredPreview | str:
        if n in guard.failed:
            return f"{records[n].path}: {guard.failed[n]}"
        guard.at(n)
        try:
            frames = middle_frames(records[n], subject.test.fps)
        except DataError as error:
            return str(error)
        return store_preview(preview(frames), out)

    test = subject.test
    found = ordered(store, range(len(records)), test.workers, timeout=test.timeout, on_failure=lambda row, reason: None)
    bar = [*progress(found, title="previews", unit="video", total=len(records), leave=False)]
    reasons = {n: each for n, each in enumerate(bar) if isinstance(each, str)}
    return [None if isinstance(each, str) else each for each in bar], reasons


def _with_maps(
    subject: Subject, queries: Sequence[QueryRow], records: Sequence[VideoRecord], out: Path, layer: str
) -> list[QueryRow]:
    """Add their maps to the hits; pairs of which a video cannot be decoded have none."""
    one = one_clip(subject)
    one = replace(one, test=one.test.model_copy(update={"allow_missing": True}))
    pairs = [(row.video, hit.video) for row in queries for hit in row.hits]
    videos, others = (
        VideoList(Path("the page"), Records(Path(), [records[pair[side]] for pair in pairs]), ()) for side in (0, 1)
    )
    maps: dict[tuple[int, int], tuple[StoredPreview, StoredPreview]] = {}
    found = pair_maps(one, videos, others, layer) if pairs else ()
    for n, mine, theirs, _ in progress(found, title="maps", unit="pair", total=len(pairs), leave=False):
        of_query, of_video = (store_preview(preview(draw_heat(clip.frames, clip.map)), out) for clip in (mine, theirs))
        maps[pairs[n]] = of_query, of_video
    return [
        replace(row, hits=tuple(replace(hit, maps=maps.get((row.video, hit.video))) for hit in row.hits))
        for row in queries
    ]


def _protocol(subject: Subject, results: Results) -> list[tuple[str, str]]:
    """Describe how the numbers were measured, for those who measure again."""
    test, origin = subject.test, subject.origin
    source = "" if test.short_side is None else f" of a short side of {test.short_side}"
    features = "their mean subtracted (centred)" if results.get("centered") else "not centred"
    found = {
        "Similarity": f"cosine of features, {features}",
        "Clips": f"{format_clips(dict(test))}{source}, {test.clip.frames} frames each",
        "Precision": test.precision,
        "Backbone": subject.name if subject.run is None else str(subject.run.backbone.name),
        "Checkpoint": origin["path"] if "step" not in origin else f"{origin['path']}, step {origin['step']}",
        "Hash of the checkpoint (sha256)": str(origin.get("sha256") or ""),
        "Copies": "left out" if results["drop_duplicates"] else "",
    }
    return [(name, value) for name, value in found.items() if value]


def _missing(results: Results) -> Iterable[Results]:
    """The videos that could not be read, each with path and reason."""
    for name in ("missing", "missing_queries", "missing_gallery"):
        yield from results.get(name, ())


def _groups(pairs: Iterable[tuple[int, int]], query: VideoList, gallery: VideoList) -> list[list[str]]:
    """The names of files that are equal, by group; each pair is a query and a gallery row."""
    first: dict[str, str] = {}  # a path to the first of its group
    groups: dict[str, dict[str, str]] = {}  # of which the paths and their names
    for n, row in sorted(pairs):
        one, other = query.records[n].path, gallery.records[row].path
        leader = first.get(one) or first.get(other) or one
        for path, name in ((one, query.names[n]), (other, gallery.names[row])):
            first[path] = leader
            groups.setdefault(leader, {})[path] = name
    # Two folders may have files of one name.
    found = [[*(names if len({*names.values()}) < len(names) else names.values())] for names in groups.values()]
    return [names for names in found if len(names) > 1]  # moments of one file may be equal


def _title(videos: VideoList) -> str:
    return f"{videos.path.parent.name}/{videos.path.stem}".lstrip("/")


def _sheet(
    queries: Sequence[QueryRow],
    videos: Sequence[FoundVideo],
    records: Sequence[VideoRecord],
    fps: float | None,
    classes: Sequence[str],
) -> bytes:
    """Draw some of the queries with their nearest videos, for places that cannot show a page."""

    def shot(video: int, hit: bool | None) -> Shot:
        frames = np.full((1, 3, 96, 96), 225, np.uint8)  # grey, if it cannot be decoded
        with suppress(DataError):
            frames = middle_frames(records[video], fps)
        label = videos[video].label
        return Shot(frames, classes[label] if 0 <= label < len(classes) else Path(videos[video].name).name, hit)

    def row_of(row: QueryRow) -> list[Shot]:
        labels = videos[row.video].label, [videos[hit.video].label for hit in row.hits[:_SHEET]]
        verdicts = [None if -1 in (labels[0], label) else labels[0] == label for label in labels[1]]
        return [shot(row.video, None), *(shot(hit.video, v) for hit, v in zip(row.hits, verdicts, strict=False))]

    return png(retrieval_sheet([row_of(row) for row in queries[:: max(1, len(queries) // _SHEET)][:_SHEET]]))
