"""Search a gallery with a list of queries, with one video or with examples; print it, or write numbers and a page."""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.search.page import (
    FoundVideo,
    Hit,
    QueryRow,
    StoredPreview,
    pages_of,
    remove_other_previews,
    store_preview,
    write_retrieval_page,
)
from vidssl.apps.search.queries import Queries, files_of, read_listed, read_queries
from vidssl.base import distributed
from vidssl.base.atomic import write_json, writing
from vidssl.base.command_line_and_notices import worded
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError, how_many
from vidssl.base.output_folder import claim, only_run_in
from vidssl.base.progress import Report, progress
from vidssl.base.safe_parse import read_json
from vidssl.base.types import Features, VideoRecord, unread_files
from vidssl.data.allowed_paths import RealPath
from vidssl.data.cut_windows import TimeWindows, parse_windows
from vidssl.data.find_same_videos import copied_rows, find_overlap, own_rows
from vidssl.data.label_videos import describe_labels, label_videos
from vidssl.data.list_identity import check_copies, identify
from vidssl.data.video_list import Records, VideoList, lines_beside
from vidssl.evaluation.features import claim_features
from vidssl.evaluation.metrics import accuracy, chance, majority, note_of_ranks, recall, vote
from vidssl.evaluation.protocols import Retrieval
from vidssl.evaluation.result_files import Results, clips_in_words, complete, write_results
from vidssl.evaluation.search import Neighbours, equal_rows, nearest, nearest_moments
from vidssl.evaluation.train_test_overlap import describe_overlap, report_equal_features, report_overlap
from vidssl.jobs.extract import extract_to, open_index, windows_of
from vidssl.jobs.grad_cam import layers_of_maps, one_clip, pair_maps
from vidssl.jobs.job import (
    Count,
    File,
    Folder,
    Model,
    Natural,
    NetworkOptions,
    Positive,
    Queried,
    Videos,
    file_of,
    job,
    path_of,
)
from vidssl.jobs.load_network import Subject, class_hash, device_of, load_subject
from vidssl.jobs.measurement_runner import JobResults, claim_results, format_clips, format_count, format_table
from vidssl.models.external import is_external
from vidssl.page.grad_cam_page import draw_heat
from vidssl.page.previews import of_middles, preview
from vidssl.video.reader import state_of_video

_log = logging.getLogger(__name__)
RANKS = Retrieval.Config().ks
PAGE_QUERIES, MAPPED_QUERIES = 5000, 48  # the maps of a query take seconds
_PRINTED = 10  # queries
_OF_INDEX = ("clips", "crops", "size", "short_side", "stream", "layer", "grid", "grid_frames", "join")  # it states


@job
def retrieval(
    model: Model,
    *,
    query: Queried,
    out: Folder | None = None,
    gallery: Videos | None = None,
    index: File | None = None,
    center: bool = False,
    k: Count = 10,
    drop_duplicates: bool = False,
    page_queries: Natural | None = None,
    page_hits: Count = 6,
    window: Positive | None = None,
    stride: Positive | None = None,
    one_per_video: bool = False,
    gradcam: bool | str = False,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Search a gallery with a list of queries, one video or several examples; print the hits, or write pages of them.

    A query does not find itself, nor a span of its file that overlaps it. With `window`, or an index of windows, the
    gallery consists of the windows of its videos, and a neighbour is not counted if it overlaps a nearer one.

    Args:
        model: The network, as in `test`.
        query: Videos to search for, each by itself: a list, folder or pattern; or one file, or a span of one,
            FILE@START-END in seconds; or several files and spans, examples of one thing: the search is for the mean of
            their features, of length 1 each.
        out: Folder for index.html and results.json of this query; those of each query in the same gallery are beside
            them under its name, and index.html lists them. Without it nothing is written but an `index` that is named.
        gallery: Videos to search in; optional with an `index`, which then is searched whole.
        index: Folder with the features of the gallery, whose clips are the default; extracted if it does not exist. By
            default OUT/features.
        center: Subtract the mean of each list first; the other numbers are reported under `uncentered`.
        k: Neighbours for kNN, or results for one video.
        drop_duplicates: Ignore copies of the query in the gallery: files of equal content, or bit-identical features.
        page_queries: Queries on the page, evenly spaced over the list if it has more (default 5000; with gradcam 48).
        page_hits: Neighbours of each query on the page.
        window: Search in windows of the gallery's videos, which last so long, seconds.
        stride: Seconds from the start of a window to the start of the next (default: the window).
        one_per_video: Only the best window of each video; without it, windows that overlap a better one are left out.
        gradcam: Add the maps (Grad-CAM) of each query and neighbour for their similarity to the page: of the last layer
            with 4 x 4 cells or more, or of the layer that is named.
        progress: As of `test`.
        options: See `NetworkOptions`.
    """
    if not isinstance(query, str | Path | VideoList) and len(query) == 1:
        query = query[0]
    folder, windows = None if out is None else Path(out), parse_windows(window, stride)
    searched = Path(index) if index is not None else None if folder is None else folder / "features"
    if gallery is None and (searched is None or (index is None and not searched.exists())):
        raise ConfigError("there is no gallery: give gallery=LIST, index=FOLDER or both")
    if gallery is None and windows is not None:
        raise ConfigError("an index has its own windows: leave window out, or give gallery=LIST to cut its videos")
    inputs: dict[str, Path | str | None] = {"gallery": path_of(gallery)}
    if folder is not None:
        assert searched is not None
        if gallery is not None and searched.resolve() == folder.resolve():
            raise ConfigError(f"index and out are both {folder}: choose another folder for one of them")
        # A text: an index may lie in the folder, and be there already.
        inputs["index"] = os.path.relpath(searched.resolve(), folder.resolve())
        if gallery is not None:
            inputs["windows"] = "none" if windows is None else f"{windows.window:g} s every {windows.stride:g} s"
        claim_results(folder, "retrieval", inputs, [file_of(model), options.get("cfg"), *files_of(query)])
    if searched is not None:
        if gallery is not None:
            claim_features(searched, [path_of(gallery)])
        options = _with_clips_of(searched, model, options)
    queries, listed = _read(query, gallery, options, windows is None)
    _check(queries, center, bool(gradcam))
    with distributed.joined(device_of(model, options)), nullcontext() if folder is None else only_run_in(folder):
        subject = load_subject(model, options)
        if folder is not None:  # all its pages have them in common
            inputs["network"] = f"{Path(subject.name).name} {subject.made_by()['weights'][0][:8]}"
            inputs["clips"] = clips_in_words(subject.describe()["protocol"])
            distributed.together(partial(claim, folder, "retrieval", inputs=inputs))
        layer = None  # of the maps; an error before the long work, if there is none
        if gradcam:
            layer = layers_of_maps(one_clip(subject), None if gradcam is True else gradcam)[0]
        if page_queries is None:
            page_queries = MAPPED_QUERIES if gradcam else PAGE_QUERIES
        how = _Options(k, center, drop_duplicates, one_per_video)
        places = listed, searched, options.get("root"), options.get("labels"), windows
        shown = (1, k) if queries.one else (page_queries, page_hits)
        results = JobResults(_Search(subject, queries, *places, how, folder, *shown, layer).run())
    results.text, results.file = recalls_table(results), None if folder is None else folder / "index.html"
    return results


def _read(
    query: Videos, gallery: Videos | None, options: NetworkOptions, required: bool
) -> tuple[Queries, VideoList | None]:
    """Read queries and gallery, of which some must have labels if `required`; a list for both is read once."""
    of_queries = options.copy()
    if gallery is None and (path := path_of(query)) is not None and lines_beside(path, "root.txt"):
        of_queries.pop("root", None)  # it is that of the index
    queries, labels = read_queries(query, of_queries), options.get("labels")
    if not queries.one:  # a query may have no label: the page shows what is near
        queries = replace(queries, videos=label_videos(queries.videos, labels, required=False))
    if gallery is None:
        return queries, None
    same = _same(gallery, query)
    return queries, queries.videos if same else label_videos(read_listed(gallery, options), labels, required)


def _check(queries: Queries, center: bool, gradcam: bool) -> None:
    """Find errors before the long work."""
    if center and queries.one:
        raise ConfigError("center=True needs a list of queries: the mean of one video is the video itself")
    if gradcam and (center or len(queries.words) > 1):
        raise ConfigError("gradcam=True explains similarities to single videos that are not centred: leave it out")


def _with_clips_of(index: Path, model: Model, options: NetworkOptions) -> NetworkOptions:
    """Return options with the clips of an index, where they do not state others."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # none yet, or an error where it is opened
        protocol = read_json(index / "meta.json")["request"]["protocol"]
        names = _OF_INDEX[:1] if is_external(model) else _OF_INDEX  # other libraries have their own crops
        if not {"test", "parts"} & {*options, *protocol}:
            return cast(NetworkOptions, {name: protocol[name] for name in names if protocol.get(name)} | options)
    return options


def _same(gallery: Videos, query: Videos) -> bool:
    paths = [path_of(videos) for videos in (gallery, query)]
    return gallery is query or (None not in paths and len({path.resolve() for path in paths if path}) == 1)


# The search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gallery:
    """What is searched: features, and the videos of their rows."""

    features: Features
    videos: VideoList  # of its rows
    windows: Tree | None  # window and stride in seconds, if the rows are windows of videos
    list: str  # fingerprint of the list
    data: Tree  # its files, as in `identify`

    def search(self, query: Tensor, k: int, exclude: Tensor, one_per_video: bool, center: bool = False) -> Neighbours:
        """Find the nearest rows; in windows, the nearest moments."""
        x, records = self.features.x, self.videos.records
        if self.windows is None and not one_per_video:
            return nearest(query, x, k, exclude, center=center)
        return nearest_moments(query, x, records, k, exclude, center=center, one_per_video=one_per_video)


@dataclass(frozen=True)
class _Options:
    """How a gallery is searched."""

    k: int
    center: bool
    drop_duplicates: bool
    one_per_video: bool


@dataclass(frozen=True)
class _Matches:
    """The result of a search."""

    videos: VideoList  # that the neighbours are rows of
    neighbours: Neighbours
    overlap: Tree  # counts, as of `describe_overlap`
    copies: set[tuple[int, int]]  # a query and a row of the videos that are equal; of one query an example and a row
    duplicates: set[tuple[int, int]]  # the same pairs; of one query 0 and a row
    numbers: Results


@dataclass(frozen=True)
class _Search:
    """What is searched for, where and how, and what its page shows."""

    subject: Subject
    queries: Queries
    listed: VideoList | None  # the gallery; None: all of the index; the queries themselves are extracted once
    index: Path | None  # with the features of the gallery; extracted if it does not exist
    root: File | None  # of the videos of an index that is searched whole
    labels: File | None  # of the videos of an index, as in `label_videos`
    windows: TimeWindows | None
    options: _Options
    folder: Path | None  # of the page and the results
    page_queries: int  # at most, evenly spaced over the list
    page_hits: int  # of a query
    layer: str | None  # whose maps (Grad-CAM) the page has, of queries and videos for their similarity

    def run(self) -> Results:
        """Extract the features, search, and write the page and the results."""
        queries, subject = self.queries.videos, self.subject
        data = distributed.on_main(lambda: identify(queries))
        # Without labels nothing is measured that the training could have seen.
        labelled = not self.queries.one and bool((queries.labels >= 0).any())
        training = subject.count_overlap(queries)["training"] if labelled else None
        measured = labelled and (self.listed is None or _comparable(self.listed, queries))  # then R@k is reported
        subject = subject if measured and queries.is_test_set else subject.skipping()
        gallery = self._load(subject, data)
        query = None
        if self.listed is not queries or self.windows is not None:
            query = subject.extract(queries, "queries")
        return distributed.on_main(lambda: self._measure(subject, gallery, query, data, training))

    def _load(self, subject: Subject, query_data: Tree) -> Gallery | None:
        """Load the features of the gallery, or extract them; `query_data` is what `identify` returned for the queries.

        Other processes than the main one, which searches, get none of an index.
        """
        listed, index, windows = self.listed, self.index, self.windows
        if listed is not None:
            data = distributed.on_main(lambda: identify(listed))
            check_copies(listed.path, data, self.queries.videos.path, query_data)
            if index is None:
                rows = listed if windows is None else windows_of(listed, windows, subject.test)
                features = subject.extract(rows, "gallery")
                seconds = None if windows is None else asdict(windows)
                return Gallery(features, rows.rows(features.index.tolist()), seconds, listed.fingerprint, data)
            extract_to(subject, listed, data, index, title="gallery", windows=windows)
        assert index is not None
        # Not `on_main`, which would send the gallery to all processes.
        return distributed.together(lambda: self._open(index, subject, query_data) if distributed.is_main() else None)

    def _open(self, index: Path, subject: Subject, query_data: Tree) -> Gallery:
        folder, listed = open_index(index, subject), self.listed
        request, seconds = folder.request, folder.request.get("windows")
        check_copies(index, request["data"], self.queries.videos.path, query_data)
        described = seconds, request["list"], request["data"]
        if listed is not None and seconds is None:
            return Gallery(folder.features, listed.rows(folder.features.index.tolist()), *described)
        root, rows = self.root if listed is None else listed.root, range(len(folder.features))
        videos = folder.videos(rows, None if root is None else Path(root))
        if listed is None and root is not None and not any(state_of_video(record.path) for record in videos.records):
            named = f"{root} has none of the videos of {index}, such as {videos.names[0]}"
            raise DataError(f"{named}: leave root=FOLDER out; that of a list of queries is in root.txt beside it")
        if self.labels is not None:  # labelled spans of whole videos are rows more, without features
            videos = label_videos(videos, self.labels).rows(rows)
        return Gallery(folder.features, videos, *described)

    def _measure(
        self, subject: Subject, gallery: Gallery | None, query: Features | None, data: Tree, training: Tree | None
    ) -> Results:
        """Search with the queries, without features with those of the gallery; `data` describes their files."""
        assert gallery is not None
        if query is None:
            query = gallery.features
        queries, folder = self.queries, self.folder
        videos, note = queries.videos.rows(query.index.tolist()), ""
        if gallery.videos.classes != videos.classes and _labelled(videos).any() and _labelled(gallery.videos).any():
            both = f"{queries.videos.path} has other classes than {gallery.videos.path}"
            note = worded(f"no accuracies: {both}; labels=FILE gives labels to both")
            videos = videos.relabelled([-1] * len(videos), (), "none")  # a number of theirs is another class
        matches = _match(gallery, query, videos, self.options, queries)
        results: Results = {
            **({"note": note} if note and not queries.one else {}),
            **({"neighbours": _describe_hits(matches, 0)} if queries.one else {}),
            **matches.numbers,
            "num_gallery": len(gallery.features.x),
            "num_gallery_files": len({*gallery.videos.names}),
            "missing_queries": [{"path": path, "reason": reason} for path, reason in query.missing],
            "missing_gallery": [{"path": path, "reason": reason} for path, reason in gallery.features.missing],
            "drop_duplicates": self.options.drop_duplicates,
            "gallery": str(self.index if self.listed is None else self.listed.path),
            "query": queries.text,
            "page": None if folder is None else queries.page(folder),
            "windows": gallery.windows,
            "one_per_video": self.options.one_per_video,
            "copies": data["copies"],
            **subject.describe(),
        }
        request = subject.request(
            command="retrieval",
            list=queries.videos.fingerprint,
            classes=class_hash(queries.videos),
            data=data,
            gallery=gallery.list,
            gallery_data=gallery.data,
            windows=gallery.windows,
            options=asdict(self.options),
        )
        overlap = {"gallery": matches.overlap, "training": training}
        fingerprints = {"query": queries.videos.fingerprint, "gallery": gallery.list}
        results = complete(results, request=request, overlap=overlap, **fingerprints)
        if folder is not None:
            self.write_page(folder, results, videos, matches)
            write_results(folder, results)  # if it exists, the rest is complete
        elif not queries.one:
            hits = [_describe_hits(matches, n)[: self.options.k] for n in range(len(videos))]
            results["hits"] = [{"query": name, "neighbours": of} for name, of in zip(videos.names, hits, strict=True)]
        return results

    def write_page(self, out: Path, results: Results, query: VideoList, matches: _Matches) -> None:
        """Write `index.html` and its previews."""
        gallery, near, subject = matches.videos, matches.neighbours, self.subject
        named: dict[VideoRecord, tuple[int, str]] = {}  # the videos of the page
        queries, count = [], min(self.page_queries, len(query))
        for n in [step * len(query) // count for step in range(count)]:
            video = _number(named, query, n)
            examples = [_number(named, query, row) for row in range(1, len(query))] if self.queries.one else []
            rows = [row for row in near.index[n, : self.page_hits].tolist() if row >= 0]  # the first, if any
            pairs = zip(rows, near.similarity[n].tolist(), strict=False)
            hits = [Hit(_number(named, gallery, row), s, (n, row) in matches.duplicates) for row, s in pairs]
            queries.append(QueryRow(video, hits, examples))
        records, names, test = [*named], [name for _, name in named.values()], subject.test
        clips = of_middles(records, preview, test.fps, test.workers, test.timeout)
        previews = [clip if isinstance(clip, str) else store_preview(clip, out) for clip in clips]
        reasons = [(name, reason) for name, reason in zip(names, previews, strict=True) if isinstance(reason, str)]
        if reasons:
            _log.warning("%d videos of the page cannot be decoded, the first: %s", len(reasons), reasons[0][1])
        if self.layer is not None:
            queries = _with_maps(subject, queries, records, out, self.layer)
        stored = [None if isinstance(stored, str) else stored for stored in previews]
        videos = [*map(FoundVideo, names, records, stored)]
        # The videos that could not be read were not searched; of those that were, an index may outlive the file.
        unread = [(gap["path"], gap["reason"]) for gap in (*results["missing_queries"], *results["missing_gallery"])]
        several, span = len(self.queries.words) > 1, query.records[0].span if self.queries.one else ""
        title = f"{len(query)} examples" if several else f"{_title(query)} {span}".rstrip()
        of_queries = "" if query.path == gallery.path else f" of {title}"
        with writing(out):
            # Those of the query first: at an interruption each query has its page, whosever the copies are.
            page, unread = results["page"], [*dict(reversed([*unread, *reasons])).items()][::-1]  # rows of one file
            write_json(out / f"{page}.json", results)
            for name in (page, "index"):
                write_retrieval_page(
                    out / f"{name}.html",
                    title=f"Nearest videos{of_queries} in {_title(gallery)}",
                    results=results,
                    videos=videos,
                    queries=queries,
                    class_names=gallery.classes,
                    network=subject.name,
                    protocol=_protocol(subject, results),
                    unread=unread,
                    earlier=None if name == page else [path for path in pages_of(out) if path.stem != page],
                    copies=_groups(matches.copies, query, gallery),
                )
            maps = [stored_map for row in queries for hit in row.hits for stored_map in hit.maps]
            remove_other_previews(out, [*filter(None, stored), *maps])


def _match(gallery: Gallery, query: Features, queries: VideoList, options: _Options, of: Queries) -> _Matches:
    """Search with all queries, plain and centred; the neighbours are those of the features that are reported first."""
    g, k, videos = gallery.features, options.k, gallery.videos
    if of.one:
        near = _nearest_of_one(gallery, of.mean(query.x), query.x, queries, options)
        rows = near.index[0].tolist()
        near, videos = Neighbours(torch.arange(len(rows))[None], near.similarity), videos.rows(rows)
        pairs, counts = _compare(query.x, g.x[rows], queries, videos, False, options.drop_duplicates)
        copies = {(n, row) for n, row in pairs.tolist()}
        duplicates = {(0, row) for _, row in copies}
        return _Matches(videos, near, counts, copies, duplicates, {"duplicates": len(duplicates)})
    exclude, labelled = own_rows(videos, queries), _comparable(videos, queries)
    pairs, counts = _compare(query.x, g.x, queries, videos, labelled, options.drop_duplicates)
    if options.drop_duplicates:
        exclude = torch.cat([exclude, pairs])
    both = _search_both(gallery, query.x, exclude, options)
    numbers = _measure_labelled(gallery, query, queries, exclude, options, both) if labelled else {}
    copies = {(n, row) for n, row in pairs.tolist()}
    unordered = {(min(pair), max(pair)) for pair in copies} if query is g else copies  # A = B is B = A
    numbers |= {"duplicates": len(unordered), "num_queries": len(query.x), "centered": options.center, "knn_k": k}
    return _Matches(videos, both[options.center], counts, copies, copies, numbers)


def _search_both(gallery: Gallery, x: Tensor, exclude: Tensor, options: _Options) -> tuple[Neighbours, Neighbours]:
    """Find the neighbours of plain features, and of centred ones."""
    search = partial(gallery.search, x, max(RANKS[-1], options.k), exclude, options.one_per_video)
    return search(), search(center=True)


def _labelled(videos: VideoList) -> Tensor:
    """Whether each video (N,) has one label."""
    return torch.from_numpy(videos.labels >= 0)


def _comparable(gallery: VideoList, queries: VideoList) -> bool:
    """Whether a label means the same in both lists, and both have some."""
    return gallery.classes == queries.classes and bool(_labelled(gallery).any() and _labelled(queries).any())


def _measure_labelled(
    gallery: Gallery,
    query: Features,
    queries: VideoList,
    exclude: Tensor,
    options: _Options,
    near: tuple[Neighbours, Neighbours],
) -> Results:
    """Return the accuracies of the queries and gallery videos that have labels, without the pairs `exclude`.

    `near` are the neighbours of all of them, plain and centred; if some have no label, the others are searched again.
    """
    known, k = (_labelled(queries), _labelled(gallery.videos)), options.k
    q, g = (
        replace(features, label=torch.from_numpy(videos.labels))
        for features, videos in ((query, queries), (gallery.features, gallery.videos))
    )
    if not all(mask.all() for mask in known):
        exclude = exclude[known[0][exclude[:, 0]] & known[1][exclude[:, 1]]]
        exclude = torch.stack([mask.cumsum(0)[exclude[:, n]] - 1 for n, mask in enumerate(known)], dim=1)
        q, g = (
            Features(features.x[mask], features.label[mask], features.index[mask])
            for features, mask in zip((q, g), known, strict=True)
        )
        part = replace(gallery, features=g, videos=gallery.videos.rows(known[1].nonzero()[:, 0].tolist()))
        near = _search_both(part, q.x, exclude, options)
    plain, centred = near
    first, second = (centred, plain) if options.center else (plain, centred)
    ranks = {**{f"R@{rank}": rank for rank in RANKS}, "knn": k}
    note = note_of_ranks(ranks, len(g.x), "videos" if gallery.windows is None else "windows")
    lines = describe_labels(queries), f"gallery {describe_labels(gallery.videos)}"
    return {
        **recall(first, q, g, RANKS),
        "chance": chance(q, g, exclude),
        "majority": majority(q.label)["majority"],
        "knn": accuracy(vote(plain, g, k), q.label),
        "uncentered" if options.center else "centered_features": recall(second, q, g, RANKS),
        "labels": lines[0] if queries.path == gallery.videos.path else "; ".join(lines),
        **({} if note is None else {"note": note}),
    }


def _nearest_of_one(gallery: Gallery, query: Tensor, x: Tensor, queries: VideoList, options: _Options) -> Neighbours:
    """Find the neighbours of one query (1, D), of one video or of examples, whose features are `x`.

    Files are compared only for what was found: a gallery may have a million.
    """
    exclude, most = torch.empty(0, 2, dtype=torch.int64), options.k
    if options.drop_duplicates:
        exclude = equal_rows(x, gallery.features.x)
    while True:
        exclude[:, 0] = 0  # what is excluded for an example is for the query
        near = gallery.search(query, most, exclude, options.one_per_video)
        rows = near.index[0][near.index[0] >= 0]
        videos = gallery.videos.rows(rows.tolist())
        excluded = own_rows(videos, queries)
        if options.drop_duplicates:
            excluded = torch.cat([excluded, copied_rows(videos, queries)])
        if not len(excluded):
            return Neighbours(rows[None, : options.k], near.similarity[:, : len(rows[: options.k])])
        exclude = torch.cat([exclude, torch.stack([excluded[:, 0], rows[excluded[:, 1]]], dim=1)])
        most *= 2  # all windows of a long video may be the query's own


def _describe_hits(matches: _Matches, query: int) -> list[Tree]:
    """Describe the neighbours of a query as plain data."""
    videos, near = matches.videos, matches.neighbours
    rows = [row for row in near.index[query].tolist() if row >= 0]
    return [
        {
            "rank": n + 1,
            "similarity": near.similarity[query, n].item(),
            "label": record.label,
            "class": videos.class_name(record.label),
            "path": videos.names[row],
            "start": record.start,
            "end": record.end,
            "duplicate": (query, row) in matches.duplicates,
        }
        for n, (row, record) in enumerate(zip(rows, map(videos.records.item, rows), strict=True))
    ]


def _compare(
    query: Tensor, gallery: Tensor, query_videos: VideoList, videos: VideoList, measured: bool, dropped: bool
) -> tuple[Tensor, Tree]:
    """Return the pairs (P, 2) of a query and a copy of it in the gallery, and the counts of `describe`.

    A copy is a file of another path with the same content, or with bit-identical features: an index may be searched
    without its videos, and a copy can be in another container.
    """
    remedy = "they are left out" if dropped else "drop_duplicates=True leaves copies out"
    real_path = RealPath()
    overlapping = find_overlap(query_videos, videos, every=True)
    equal = [
        (n, row)
        for n, row in equal_rows(query, gallery).tolist()
        if real_path(query_videos.records[n].path) != real_path(videos.records[row].path)
    ]
    pairs = torch.tensor(equal, dtype=torch.int64).reshape(-1, 2)
    counts = describe_overlap(query_videos, videos, overlapping) | {"equal_features": len(torch.unique(pairs[:, 0]))}
    overlap = {"gallery": counts, "training": None}  # that of the training list was reported already
    report_overlap(overlap, query_videos.path, measured=measured, remedy=remedy)
    report_equal_features(overlap, query_videos.path, remedy)
    return torch.unique(torch.cat([overlapping.copies, pairs]), dim=0), counts


# The page and its still image ---------------------------------------------------------------------------------


def _number(named: dict[VideoRecord, tuple[int, str]], videos: VideoList, row: int) -> int:
    """Return the number of a video on the page, which it gets with its name when it is first asked for."""
    return named.setdefault(videos.records[row], (len(named), videos.names[row]))[0]


def _with_maps(
    subject: Subject, queries: Sequence[QueryRow], records: Sequence[VideoRecord], out: Path, layer: str
) -> list[QueryRow]:
    """Add their maps to the hits; pairs of which a video cannot be decoded have none."""
    subject = one_clip(subject)
    subject = replace(subject, test=subject.test.model_copy(update={"allow_missing": True}))
    pairs = [(row.video, hit.video) for row in queries for hit in row.hits]
    sides = [records[n] for n, _ in pairs], [records[n] for _, n in pairs]
    videos, neighbours = (VideoList(Path("the page"), Records(Path(), side), ()) for side in sides)
    maps: dict[tuple[int, int], tuple[StoredPreview, ...]] = {}
    maps_of_pairs = pair_maps(subject, videos, neighbours, layer) if pairs else ()
    for n, mine, theirs, _ in progress(maps_of_pairs, title="maps", unit="pair", total=len(pairs), leave=False):
        of_query, of_video = (store_preview(preview(draw_heat(clip.frames, clip.map)), out) for clip in (mine, theirs))
        maps[pairs[n]] = of_query, of_video
    return [
        QueryRow(row.video, [hit._replace(maps=maps.get((row.video, hit.video), ())) for hit in row.hits])
        for row in queries
    ]


def _protocol(subject: Subject, results: Results) -> list[tuple[str, str]]:
    """Describe how the numbers were measured, for those who measure again."""
    origin, centered = results["checkpoint"], results.get("centered")
    features = "their mean subtracted (centred)" if centered else "not centred"
    rows = {
        "Similarity": f"cosine of features, {features}",
        "Clips": clips_in_words(results["protocol"]),
        "Precision": results["protocol"]["precision"],
        "Backbone": subject.name if subject.run is None else str(subject.run.backbone.name),
        "Checkpoint": origin["path"] if "step" not in origin else f"{origin['path']}, step {origin['step']}",
        "Hash of the checkpoint (sha256)": str(origin.get("sha256") or ""),
        "Copies": "left out" if results["drop_duplicates"] else "",
    }
    return [(name, value) for name, value in rows.items() if value]


def _groups(pairs: Iterable[tuple[int, int]], query: VideoList, gallery: VideoList) -> list[list[str]]:
    """The names of files that are equal, by group; each pair is a query and a gallery row."""
    groups: dict[str, dict[str, str]] = {}  # paths and names of a group, by each of its paths
    for n, row in sorted(pairs):
        names = {query.records[n].path: query.names[n], gallery.records[row].path: gallery.names[row]}
        group = next((groups[path] for path in names if path in groups), {})
        group |= names
        groups |= dict.fromkeys(names, group)
    distinct = {id(group): group for group in groups.values()}.values()
    # Two folders may have files of one name.
    lists = [[*(names if len({*names.values()}) < len(names) else names.values())] for names in distinct]
    return [names for names in lists if len(names) > 1]  # moments of one file may be equal


def _title(videos: VideoList) -> str:
    return f"{videos.path.parent.name}/{videos.path.stem}".lstrip("/")


def recalls_table(results: Results) -> str:
    """Format the numbers of a retrieval, or the neighbours of one video, as a short table."""
    protocol = format_clips(results["protocol"])
    windows = results["windows"]
    gallery = f"{format_count(results['num_gallery'], results['missing_gallery'])} in the gallery"
    if windows is not None:
        files = how_many(results["num_gallery_files"], "file")
        unread = unread_files((gap["path"], gap["reason"]) for gap in results["missing_gallery"])
        gallery = f"{results['num_gallery']} windows of {windows['window']:g} s in the gallery ({files}{unread})"
    head, notes = f"{results['query']}: {gallery}, {protocol}", [results["note"]] if "note" in results else []
    if "neighbours" in results:
        return "\n".join([head, *_hits_table(results["neighbours"])])
    if "majority" not in results:
        hits = results.get("hits", ())
        if not hits:
            notes = notes or [
                worded('no accuracies, as no classes are known: labels="folders" or labels=FILE has them')
            ]
        elif len(hits) > _PRINTED:
            notes = [*notes, worded(f"the first {_PRINTED} of {len(hits)} queries; out=FOLDER has all:")]
        tables = (line for of in hits[:_PRINTED] for line in ("", of["query"], *_hits_table(of["neighbours"])))
        return "\n".join([head, *notes, *tables])
    names = [f"R@{k}" for k in RANKS]
    plain = results["uncentered"] if results["centered"] else results
    centred = results if results["centered"] else results["centered_features"]
    cells = [
        ["percent", *names, "knn", "majority"],
        ["plain", *_percent(plain, names), *_percent(results, ("knn", "majority"))],
        ["centred", *_percent(centred, names), "", ""],
    ]
    queries = format_count(results["num_queries"], results["missing_queries"])
    head = f"{queries} queries, {gallery}, {protocol}, cosine"
    return "\n".join([results["labels"], head, *format_table(cells, "<" + ">" * (len(names) + 2)), *notes])


def _hits_table(hits: Iterable[Tree]) -> list[str]:
    cells = [["", "similarity", "class", "path"]]
    for hit in hits:
        span = VideoRecord(hit["path"], start=hit["start"], end=hit["end"]).span
        name = f"{hit['path']} {span}".rstrip() + " (a duplicate)" * hit["duplicate"]
        cells.append([str(hit["rank"]), f"{hit['similarity']:.4f}", hit["class"], name])
    return format_table(cells, "><<<")


def _percent(numbers: Results, names: Iterable[str]) -> list[str]:
    return [f"{100 * numbers[name]:.1f}" for name in names]
