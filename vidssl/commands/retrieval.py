"""Retrieval: search a gallery with a list of queries or with one video; write numbers and a page."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.atomic import check_folder
from vidssl.commands.extract import extract_to, open_index
from vidssl.commands.load import LoadOptions, Subject, format_count, load_subject
from vidssl.commands.retrieval_page import PageImages, middle_frames, query_row, with_span, write_results
from vidssl.config import Tree
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.run_config import choose_device
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.evaluation.feature_folder import FeatureFolder
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

    Args:
        options: The network and its clips.
        gallery: The list to search; None: all of `index`.
        query: List of queries. A query that is also in the gallery does not find itself, nor a span of its file that
            overlaps it (`own_rows`).
        out: Folder for the results; created if it does not exist.
        index: Folder of the gallery's features, as of `extract_features`; created if it does not exist.
        center: Report centred features first (see `nearest`) and the others under `uncentered`, instead of
            `centered_features`.
        k: Number of neighbours that vote in kNN.
        drop_duplicates: Ignore gallery items whose feature is bit-identical to the query's (duplicate files).
        shown_queries: Number of queries on the page, evenly spaced over the list.
        shown_hits: Number of their neighbours on the page.

    Returns:
        The content of `results.json`, on every process; only the main one writes. Without labels in both lists it has
        no accuracies.

    Raises:
        ConfigError: There is neither a gallery nor an index.
        DataError: A list, a video or the index cannot be used, the lists have different classes, or one contains
            original videos and the other shrunk copies.
    """
    check_folder(out)
    listed = None if gallery is None else read_list(gallery, options.root, options.allow_external)
    queries = read_list(query, options.root, options.allow_external)
    if listed is not None:
        check_classes(listed, queries)
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        data = distributed.on_main(lambda: identify(queries))
        g = _open_gallery(subject, options, listed, index, query, data)
        q = extract(subject.backbone, queries, subject.test, subject.device, "queries")

        def measure() -> dict[str, Any]:
            assert g is not None  # this is the main process
            found, asked = g.videos(range(len(g.features.x))), queries.rows(q.index.tolist())
            check_classes(found, asked)
            neighbours, numbers = _measure(g.features, q, found, asked, center, k, drop_duplicates)
            results = {
                **numbers,
                "num_queries": len(q.x),
                "centered": center,
                "knn_k": k,
                **_describe(
                    subject, g, q, data, drop_duplicates, index if gallery is None else gallery, query
                ),
            }
            count, images = min(shown_queries, len(q.x)), PageImages(subject.test.fps)
            chosen = [n * len(q.x) // count for n in range(count)]
            rows = [query_row(found, asked, neighbours, n, shown_hits, images) for n in chosen]
            write_results(out, subject, results, found, asked, rows, images)
            return results

        return distributed.on_main(measure)


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
    """Search a gallery with one video; write `results.json`, `index.html` and the still `retrieval.png`.

    Args:
        options: As of `retrieve`.
        gallery: As of `retrieve`.
        video: The query: a video, an image or a folder of images. It does not find itself.
        out: As of `retrieve`.
        index: As of `retrieve`.
        k: Number of videos to find.
        drop_duplicates: As of `retrieve`.

    Returns:
        The content of `results.json`, on every process: `neighbours` (rank, similarity, label, class, path, start, end,
        and whether it is a duplicate), nearest first.

    Raises:
        ConfigError: There is neither a gallery nor an index.
        DataError: A list, a video or the index cannot be used, or only one of gallery and query are shrunk copies.
    """
    check_folder(out)
    try:
        middle_frames(VideoRecord(str(video)))  # raises errors before the long work
    except DecodeError as error:
        known = video.is_dir() or video.suffix.lower() in VIDEO_SUFFIXES | IMAGE_SUFFIXES
        raise DataError(
            f"{error}" if known else f"{error}; if it is a list, its name must end in .csv"
        ) from None
    listed = None if gallery is None else read_list(gallery, options.root, options.allow_external)
    query = VideoList(video, video.parent, (video.name,), (VideoRecord(str(video)),), ())
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        data = distributed.on_main(lambda: identify(query))
        g = _open_gallery(subject, options, listed, index, video, data)
        q = extract(subject.backbone, query, subject.test, subject.device, "query")

        def search() -> dict[str, Any]:
            assert g is not None  # this is the main process
            rows, similarity, same = _search(g, q, query, k, drop_duplicates)
            found = g.videos(rows)
            results = {
                "neighbours": [
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
                ],
                "duplicates": sum(same),
                **_describe(
                    subject, g, q, data, drop_duplicates, index if gallery is None else gallery, video
                ),
            }
            neighbours = Neighbours(torch.arange(len(rows))[None], torch.tensor(similarity)[None])
            images = PageImages(subject.test.fps)
            row = query_row(found, query, neighbours, 0, k, images)
            write_results(out, subject, results, found, query, [row], images)
            return results

        return distributed.on_main(search)


def _describe(
    subject: Subject,
    gallery: _Gallery,
    query: Features,
    data: Tree,
    drop_duplicates: bool,
    gallery_path: Path | None,
    query_path: Path,
) -> dict[str, Any]:
    """The part of `results.json` that is the same for a list of queries and for one video."""
    features = gallery.features
    return {
        "num_gallery": len(features.x),
        "missing_queries": [{"path": path, "reason": reason} for path, reason in query.missing],
        "missing_gallery": [{"path": path, "reason": reason} for path, reason in features.missing],
        "drop_duplicates": drop_duplicates,
        "gallery": str(gallery_path),
        "query": str(query_path),
        "copies": data["copies"],
        **subject.describe(),
    }


def table(results: dict[str, Any]) -> str:
    """Format the numbers of a retrieval, or the neighbours of one video, as a short table."""
    test = results["protocol"]
    protocol = f"{test['clips']} clips x {test['crops']} crops of {test['size']}²"
    gallery = f"{format_count(results['num_gallery'], results['missing_gallery'])} in the gallery"
    if "neighbours" in results:
        cells = [["", "similarity", "class", "path"]]
        for hit in results["neighbours"]:
            name = with_span(hit["path"], hit["start"], hit["end"])
            name += " (a duplicate)" if hit["duplicate"] else ""
            cells.append([str(hit["rank"]), f"{hit['similarity']:.4f}", hit["class"], name])
        return "\n".join([f"{results['query']}: {gallery}, {protocol}", *_aligned(cells, "><<<")])
    if "chance" not in results:
        return "the lists have no labels: neighbours were searched, accuracies are not defined"
    names = [f"R@{k}" for k in RANKS]
    plain, centred = results, results["uncentered" if results["centered"] else "centered_features"]
    if results["centered"]:
        plain, centred = centred, plain
    cells = [
        ["percent", *names, "knn", "chance"],
        [
            "plain",
            *(_percent(plain[name]) for name in names),
            _percent(results["knn"]),
            _percent(results["chance"]),
        ],
        ["centred", *(_percent(centred[name]) for name in names), "", ""],
    ]
    queries = format_count(results["num_queries"], results["missing_queries"])
    head = f"{queries} queries, {gallery}, {protocol}, cosine"
    return "\n".join([head, *_aligned(cells, "<" + ">" * (len(names) + 2))])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _aligned(cells: list[list[str]], sides: str) -> list[str]:
    """Format rows as lines with columns of equal width; `sides` has `<` (left) or `>` (right) per column."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def is_video(path: Path) -> bool:
    """Whether a query is one video, image or folder of images: everything but a `.csv` file."""
    return path.is_dir() or path.suffix.lower() != ".csv"


# Features and neighbours ------------------------------------------------------------------------------------


def _open_gallery(
    subject: Subject,
    options: LoadOptions,
    listed: VideoList | None,
    index: Path | None,
    query: Path,
    asked: Tree,
) -> _Gallery | None:
    """Load the gallery's features from the index, which is created if it does not exist, or extract them.

    Args:
        subject: The network.
        options: As of `retrieve`.
        listed: The gallery; None: all of the index.
        index: Folder of its features.
        query: The query, for messages.
        asked: Its files, as `identify` describes them.

    Returns:
        None on all processes but the main one if there is an index.
    """
    data: Tree = {}
    if listed is not None:
        data = distributed.on_main(lambda: _identify_gallery(listed, query, asked))
    if index is None:
        if listed is None:
            raise ConfigError("there is no gallery: give --gallery LIST, --index FOLDER or both")
        features = extract(subject.backbone, listed, subject.test, subject.device, "gallery")
    else:
        if listed is not None:
            extract_to(subject, listed, data, index, title="gallery")

        def open_it() -> FeatureFolder | None:
            if not distributed.is_main():
                return None
            found = open_index(index, subject)
            check_copies(index, found.request["data"], query, asked)
            return found

        opened = distributed.together(open_it)
        if opened is None:
            return None
        features = opened.features
        if listed is None:
            return _Gallery(features, lambda rows: opened.videos(rows, options.root))
    return _Gallery(features, lambda rows: listed.rows([int(features.index[row]) for row in rows]))


def _identify_gallery(gallery: VideoList, query: Path, asked: Tree) -> Tree:
    data = identify(gallery)
    check_copies(gallery.path, data, query, asked)
    return data


def _measure(
    gallery: Features,
    query: Features,
    there: VideoList,
    asked: VideoList,
    center: bool,
    k: int,
    drop_duplicates: bool,
) -> tuple[Neighbours, dict[str, Any]]:
    """Search with plain and with centred features; return the neighbours of the one reported first, and all numbers."""
    exclude, pairs = own_rows(there, asked), _duplicates(query.x, gallery.x, there, asked)
    if drop_duplicates:
        exclude = torch.cat([exclude, pairs])
    most = max(RANKS[-1], k)
    plain, centred = (nearest(query.x, gallery.x, most, exclude, center=how) for how in (False, True))
    numbers: dict[str, Any] = {}
    if all(record.label >= 0 for record in (*there.records, *asked.records)):
        found = [recall(neighbours, query, gallery, RANKS) for neighbours in (plain, centred)]
        numbers = {
            **found[center],
            "chance": chance(query, gallery, exclude),
            "knn": accuracy(vote(plain, gallery, k), query.label),
            "uncentered" if center else "centered_features": found[not center],
        }
    return centred if center else plain, {**numbers, "duplicates": len(pairs)}


def _duplicates(query: Tensor, gallery: Tensor, there: VideoList, asked: VideoList) -> Tensor:
    """Return pairs (P, 2) of a query row and a gallery row of another file with bit-identical features."""
    pairs = equal_rows(query, gallery)
    files: dict[str, int] = {}
    of_query, of_gallery = (
        torch.tensor(
            [files.setdefault(os.path.realpath(record.path), len(files)) for record in videos.records]
        )
        for videos in (asked, there)
    )
    pairs = pairs[of_query[pairs[:, 0]] != of_gallery[pairs[:, 1]]]
    if len(pairs):
        named = [f"{asked.names[q]} = {there.names[g]}" for q, g in pairs[:3].tolist()]
        _log.warning(
            "%d pairs of a query and a gallery video of another path have bit-identical features (duplicate files?): "
            "%s; --drop-duplicates ignores them",
            len(pairs),
            ", ".join([*named, "…"] if len(pairs) > 3 else named),
        )
    return pairs


def _search(
    gallery: _Gallery, query: Features, asked: VideoList, k: int, drop_duplicates: bool
) -> tuple[list[int], list[float], list[bool]]:
    """Return the nearest rows of one video, their similarities, and whether they are duplicates of it."""
    exclude = torch.empty(0, 2, dtype=torch.int64)
    if drop_duplicates:
        exclude = equal_rows(query.x, gallery.features.x)
    while True:  # `own_rows` follows links, so only for videos that were found: a gallery may have a million
        found = nearest(query.x, gallery.features.x, k, exclude)
        rows = found.index[0][torch.isfinite(found.similarity[0])]
        own = own_rows(gallery.videos(rows.tolist()), asked)
        if not len(own):
            break
        exclude = torch.cat([exclude, torch.stack([own[:, 0], rows[own[:, 1]]], dim=1)])
    same = torch.isin(torch.arange(len(rows)), equal_rows(query.x, gallery.features.x[rows])[:, 1])
    return rows.tolist(), found.similarity[0, : len(rows)].tolist(), same.tolist()
