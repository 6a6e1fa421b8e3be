"""Retrieval: search a gallery with a list of queries or with one video; write numbers and a page."""

import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.atomic import check_folder
from vidssl.commands.extract_features import extract_to, open_index
from vidssl.commands.load import LoadOptions, Subject, format_count, load_subject
from vidssl.commands.retrieval_page import middle_frames, with_span, write_results
from vidssl.config import Tree
from vidssl.data.column_store import Records
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.config_schema import choose_device
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.evaluation.features import extract
from vidssl.evaluation.metrics import accuracy, chance, recall, vote
from vidssl.evaluation.preconditions import check_classes, own_rows
from vidssl.evaluation.search import Neighbours, equal_rows, nearest
from vidssl.prepare.file_index import VIDEO_SUFFIXES
from vidssl.types import Features, VideoRecord
from vidssl.video.frame_folder import IMAGE_SUFFIXES

_log = logging.getLogger(__name__)
RANKS = (1, 5, 10, 20, 50)


@dataclass(frozen=True)
class _Gallery:
    features: Features
    videos: Callable[[Sequence[int]], VideoList]  # of some rows of the features


def retrieve(
    options: LoadOptions,
    gallery: Path | None,
    query: Path,
    out: Path,
    *,
    index: Path | None = None,
    center: bool = False,
    k: int = 10,
    drop_duplicates: bool = False,
    shown_queries: int = 48,
    shown_hits: int = 6,
) -> dict[str, Any]:
    """Search the gallery with each query; write `results.json`, `index.html` and the still `retrieval.png`.

    A query that is also in the gallery does not find itself, nor a span of its file that overlaps it (`own_rows`).

    Args:
        options: The network and its clips.
        gallery: The list to search; None: all of `index`.
        query: The list of queries.
        out: Folder for the results.
        index: Folder of the gallery's features, as of `extract_features`; created if it does not exist.
        center: Report centred features first (see `nearest`) and the others under `uncentered`, instead of
            `centered_features`.
        k: Number of neighbours that vote in kNN.
        drop_duplicates: Ignore gallery items whose feature is bit-identical to the query's (duplicate files).
        shown_queries: Number of queries on the page, evenly spaced over the list.
        shown_hits: Number of their neighbours on the page.

    Returns:
        The content of `results.json`, on every process. Without labels in both lists it has no accuracies.

    Raises:
        ConfigError: There is neither a gallery nor an index.
        DataError: A list, a video or the index cannot be used, the lists have different classes, or one contains
            original videos and the other shrunk copies.
    """
    queries = read_list(query, options.root, options.allow_external)

    def measure(subject: Subject, g: _Gallery, q: Features, common: Tree) -> Tree:
        gallery_videos, query_videos = g.videos(range(len(g.features.x))), queries.rows(q.index.tolist())
        check_classes(gallery_videos, query_videos)
        neighbours, numbers = _measure(g.features, q, gallery_videos, query_videos, center, k, drop_duplicates)
        results = {**numbers, "num_queries": len(q.x), "centered": center, "knn_k": k, **common}
        count = min(shown_queries, len(q.x))
        shown = [n * len(q.x) // count for n in range(count)]
        write_results(out, subject, results, gallery_videos, query_videos, neighbours, shown, shown_hits)
        return results

    return _run(options, gallery, queries, out, index, drop_duplicates, measure)


def find(
    options: LoadOptions,
    gallery: Path | None,
    video: Path,
    out: Path,
    *,
    index: Path | None = None,
    k: int = 10,
    drop_duplicates: bool = False,
) -> dict[str, Any]:
    """Find the `k` nearest of a gallery for one video, image or folder of images, which does not find itself.

    Writes `results.json`, `index.html` and the still `retrieval.png`. Arguments and errors are those of `retrieve`.

    Returns:
        The content of `results.json`, on every process: `neighbours` (rank, similarity, label, class, path, start, end,
        and whether it is a duplicate), nearest first.
    """
    check_folder(out)
    try:
        middle_frames(VideoRecord(str(video)))  # raises errors before the long work
    except DecodeError as error:
        known = video.is_dir() or video.suffix.lower() in VIDEO_SUFFIXES | IMAGE_SUFFIXES
        raise DataError(f"{error}{'' if known else '; if it is a list, its name must end in .csv'}") from None
    query = VideoList(video, Records(video.parent, [VideoRecord(video.name)]), ())

    def search(subject: Subject, g: _Gallery, q: Features, common: Tree) -> Tree:
        rows, similarity, same = _search(g, q, query, k, drop_duplicates)
        found = g.videos(rows)
        neighbours = [
            {
                "rank": rank + 1,
                "similarity": similarity[rank],
                "label": record.label,
                "class": found.class_name(record.label),
                "path": found.names[rank],
                "start": record.start,
                "end": record.end,
                "duplicate": same[rank],
            }
            for rank, record in enumerate(found.records)
        ]
        results = {"neighbours": neighbours, "duplicates": sum(same), **common}
        order = Neighbours(torch.arange(len(rows))[None], torch.tensor(similarity)[None])
        write_results(out, subject, results, found, query, order, [0], k)
        return results

    return _run(options, gallery, query, out, index, drop_duplicates, search)


def table(results: dict[str, Any]) -> str:
    """Format the numbers of a retrieval, or the neighbours of one video, as a short table."""
    test = results["protocol"]
    protocol = f"{test['clips']} clips x {test['crops']} crops of {test['size']}²"
    gallery = f"{format_count(results['num_gallery'], results['missing_gallery'])} in the gallery"
    if "neighbours" in results:
        cells = [["", "similarity", "class", "path"]]
        for hit in results["neighbours"]:
            name = with_span(hit["path"], hit["start"], hit["end"]) + " (a duplicate)" * hit["duplicate"]
            cells.append([str(hit["rank"]), f"{hit['similarity']:.4f}", hit["class"], name])
        return "\n".join([f"{results['query']}: {gallery}, {protocol}", *_aligned(cells, "><<<")])
    if "chance" not in results:
        return "the lists have no labels: neighbours were searched, accuracies are not defined"
    names = [f"R@{k}" for k in RANKS]
    plain = results["uncentered"] if results["centered"] else results
    centred = results if results["centered"] else results["centered_features"]
    cells = [
        ["percent", *names, "knn", "chance"],
        ["plain", *_percent(plain[name] for name in names), *_percent(results[n] for n in ("knn", "chance"))],
        ["centred", *_percent(centred[name] for name in names), "", ""],
    ]
    queries = format_count(results["num_queries"], results["missing_queries"])
    head = f"{queries} queries, {gallery}, {protocol}, cosine"
    return "\n".join([head, *_aligned(cells, "<" + ">" * (len(names) + 2))])


def _percent(values: Iterable[float]) -> list[str]:
    return [f"{100 * value:.1f}" for value in values]


def _aligned(cells: list[list[str]], sides: str) -> list[str]:
    """Format rows as lines with columns of equal width; `sides` has `<` (left) or `>` (right) per column."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    formats = [f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)]
    return ["  ".join(formats).format(*row).rstrip() for row in cells]


def is_video(path: Path) -> bool:
    """Whether a query is one video, image or folder of images: everything but a `.csv` file."""
    return path.is_dir() or path.suffix.lower() != ".csv"


def _run(
    options: LoadOptions,
    gallery: Path | None,
    queries: VideoList,
    out: Path,
    index: Path | None,
    drop_duplicates: bool,
    work: Callable[[Subject, _Gallery, Features, Tree], Tree],
) -> Tree:
    """Extract both sides and do the work in the main process; `work` gets what the results of all searches hold."""
    check_folder(out)
    listed = None if gallery is None else read_list(gallery, options.root, options.allow_external)
    if listed is None and index is None:
        raise ConfigError("there is no gallery: give --gallery LIST, --index FOLDER or both")
    if listed is not None and not is_video(queries.path):
        check_classes(listed, queries)
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        data = distributed.on_main(lambda: identify(queries))
        found = _open_gallery(subject, options, listed, index, queries.path, data)
        q = extract(subject.backbone, queries, subject.test, subject.device, "queries")
        common = {
            "num_gallery": len(found.features.x),
            "missing_queries": [{"path": path, "reason": reason} for path, reason in q.missing],
            "missing_gallery": [{"path": path, "reason": reason} for path, reason in found.features.missing],
            "drop_duplicates": drop_duplicates,
            "gallery": str(index if gallery is None else gallery),
            "query": str(queries.path),
            "copies": data["copies"],
            **subject.describe(),
        }
        return distributed.on_main(lambda: work(subject, found, q, common))


def _open_gallery(
    subject: Subject, options: LoadOptions, listed: VideoList | None, index: Path | None, query: Path, query_data: Tree
) -> _Gallery:
    """Load the gallery's features from the index, which is created if it does not exist, or extract them.

    Without `listed` the gallery is all of the index. `query_data` describes the files of the query.
    """
    data: Tree = {}
    if listed is not None:
        data = distributed.on_main(lambda: identify(listed))
        check_copies(listed.path, data, query, query_data)
    if index is None:
        assert listed is not None
        features = extract(subject.backbone, listed, subject.test, subject.device, "gallery")
    else:
        if listed is not None:
            extract_to(subject, listed, data, index, title="gallery")
        folder = distributed.together(lambda: open_index(index, subject))
        check_copies(index, folder.request["data"], query, query_data)
        features = folder.features
        if listed is None:
            return _Gallery(features, lambda rows: folder.videos(rows, options.root))
    return _Gallery(features, lambda rows: listed.rows([int(features.index[row]) for row in rows]))


def _measure(
    gallery: Features,
    query: Features,
    gallery_videos: VideoList,
    query_videos: VideoList,
    center: bool,
    k: int,
    drop_duplicates: bool,
) -> tuple[Neighbours, dict[str, Any]]:
    """Search with plain and with centred features; return the neighbours of the one reported first, and all numbers.

    The videos are those of the rows of the features.
    """
    exclude, pairs = (
        own_rows(gallery_videos, query_videos),
        _duplicates(query.x, gallery.x, gallery_videos, query_videos),
    )
    if drop_duplicates:
        exclude = torch.cat([exclude, pairs])
    most = max(RANKS[-1], k)
    plain, centred = (nearest(query.x, gallery.x, most, exclude, center=how) for how in (False, True))
    numbers: dict[str, Any] = {"duplicates": len(pairs)}
    if (gallery_videos.labels >= 0).all() and (query_videos.labels >= 0).all():
        recalls = [recall(neighbours, query, gallery, RANKS) for neighbours in (plain, centred)]
        numbers = {
            **recalls[center],
            "chance": chance(query, gallery, exclude),
            "knn": accuracy(vote(plain, gallery, k), query.label),
            "uncentered" if center else "centered_features": recalls[not center],
            **numbers,
        }
    return centred if center else plain, numbers


def _duplicates(query: Tensor, gallery: Tensor, gallery_videos: VideoList, query_videos: VideoList) -> Tensor:
    """Return pairs (P, 2) of a query row and a gallery row of another file with bit-identical features."""
    file = functools.cache(os.path.realpath)
    pairs = [
        (q, g)
        for q, g in equal_rows(query, gallery).tolist()
        if file(query_videos.records[q].path) != file(gallery_videos.records[g].path)
    ]
    if pairs:
        named = [f"{query_videos.names[q]} = {gallery_videos.names[g]}" for q, g in pairs[:3]]
        _log.warning(
            "%d pairs of a query and a gallery video of another path have bit-identical features (duplicate files?): "
            "%s; --drop-duplicates ignores them",
            len(pairs),
            ", ".join([*named, "…"] if len(pairs) > 3 else named),
        )
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _search(
    gallery: _Gallery, query: Features, query_videos: VideoList, k: int, drop_duplicates: bool
) -> tuple[list[int], list[float], list[bool]]:
    """Return the nearest rows of one video, their similarities, and whether they are duplicates of it."""
    exclude = torch.empty(0, 2, dtype=torch.int64)
    if drop_duplicates:
        exclude = equal_rows(query.x, gallery.features.x)
    while True:  # `own_rows` follows links, so only for videos that were found: a gallery may have a million
        found = nearest(query.x, gallery.features.x, k, exclude)
        rows = found.index[0][torch.isfinite(found.similarity[0])]
        own = own_rows(gallery.videos(rows.tolist()), query_videos)
        if not len(own):
            break
        exclude = torch.cat([exclude, torch.stack([own[:, 0], rows[own[:, 1]]], dim=1)])
    same = torch.isin(torch.arange(len(rows)), equal_rows(query.x, gallery.features.x[rows])[:, 1])
    return rows.tolist(), found.similarity[0, : len(rows)].tolist(), same.tolist()
