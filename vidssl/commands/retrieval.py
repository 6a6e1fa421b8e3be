"""The command `retrieval`: search a gallery with a list of queries or with one video; write numbers and a page."""

import argparse
import functools
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.commands.arguments import print_results
from vidssl.commands.extract import parse_windows
from vidssl.commands.gallery import Gallery, load_gallery
from vidssl.commands.load import LoadOptions, load_subject, network_options
from vidssl.commands.results import Results, claim_results, format_clips, format_count, format_table
from vidssl.commands.retrieval_page import middle_frames, with_span, write_page
from vidssl.data.fingerprint import identify
from vidssl.data.time_windows import TimeWindows
from vidssl.data.video_list import VideoList
from vidssl.engine.config_schema import choose_device
from vidssl.errors import ConfigError, DataError, DecodeError
from vidssl.evaluation.feature_folder import claim_features
from vidssl.evaluation.features import extract
from vidssl.evaluation.list_checks import check_classes, own_rows
from vidssl.evaluation.metrics import accuracy, chance, recall, vote
from vidssl.evaluation.search import Neighbours, equal_rows
from vidssl.prepare.inputs import read_input
from vidssl.types import Features

_log = logging.getLogger(__name__)
RANKS = (1, 5, 10, 20, 50)


def run(parsed: argparse.Namespace) -> None:
    """Search, and print the numbers or the nearest videos."""
    names = ("gallery", "query", "out", "index", "center", "k", "drop_duplicates", "page_queries", "gradcam")
    chosen = {name: getattr(parsed, name) for name in (*names, "one_per_video")}
    results = retrieve(network_options(parsed), windows=parse_windows(parsed.window, parsed.stride), **chosen)
    print_results(parsed, results, table(results), parsed.out / "index.html")


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
    page_queries: int = 48,
    page_hits: int = 6,
    gradcam: str | None = None,
    windows: TimeWindows | None = None,
    one_per_video: bool = False,
) -> Results:
    """Search the gallery with each query; write `results.json`, `index.html` and the still `retrieval.png`.

    A query does not find itself, nor a span of its file that overlaps it (`own_rows`). `gallery` and `query` are inputs
    of `read_input`; the page of a single video lists its neighbours. Without `gallery` all of `index` is searched: the
    folder of the gallery's features, as of `extract_features`, created if it does not exist. `center` reports centred
    features first (see `nearest`), the others under `uncentered`. `k` neighbours vote in kNN, or are the results for
    one video. `drop_duplicates` ignores gallery videos whose features equal the query's bit by bit. The page has
    `page_queries` queries, evenly spaced over the list, with `page_hits` neighbours each. With `gradcam` it also has
    the maps of that layer, of each query and neighbour for the similarity of their central clips; "": the last one.

    With `windows`, or an `index` of windows, the gallery consists of the windows of its videos, and a neighbour is not
    counted if it overlaps a nearer one. `one_per_video` counts only the nearest row of each file.
    """
    lists = {"gallery": gallery, "index": index, "query": query}
    if index is not None and gallery is not None:
        claim_features(index, [gallery])
    claim_results(out, "retrieval", lists, [options.checkpoint, options.cfg])
    if gallery is None and index is None:
        raise ConfigError("there is no gallery: give --gallery LIST, --index FOLDER or both")
    if gallery is None and windows is not None:
        raise ConfigError("--window cuts the videos of --gallery: give one; an --index has the windows of its features")
    queries, listed = _read(query, options), None if gallery is None else _read(gallery, options)
    one_video = query.suffix.lower() != ".csv" and len(queries.records) == 1
    if one_video:
        _check_decodes(queries)
    if center and one_video:
        raise ConfigError("--center needs a list of queries: the mean of one video is the video itself")
    if center and gradcam is not None:
        raise ConfigError("--gradcam explains similarities that are not centred: leave out --center or --gradcam")
    if listed is not None and not one_video:
        check_classes(listed, queries)
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        if gradcam:
            subject.encoder.layer_module(gradcam)  # an error before the long work, if there is none
        data = distributed.on_main(lambda: identify(queries))
        found = load_gallery(subject, listed, index, options.root, (query, data), windows, one_per_video)
        q = extract(subject.encoder, queries, subject.test, subject.device, "queries")

        def search() -> Results:
            g, own = found[0], queries.rows(q.index.tolist())
            if one_video:
                videos, neighbours, numbers = _search_one(g, q, own, k, drop_duplicates)
            else:
                videos, neighbours, numbers = _search_all(g, q, own, k, drop_duplicates, center)
            results = {
                **numbers,
                "num_gallery": len(g.features.x),
                "missing_queries": [{"path": path, "reason": reason} for path, reason in q.missing],
                "missing_gallery": [{"path": path, "reason": reason} for path, reason in g.features.missing],
                "drop_duplicates": drop_duplicates,
                "gallery": str(index if gallery is None else gallery),
                "query": str(query),
                "windows": g.windows,
                "one_per_video": one_per_video,
                "copies": data["copies"],
                **subject.describe(),
            }
            count = 1 if one_video else min(page_queries, len(q.x))
            shown = [n * len(q.x) // count for n in range(count)]
            hits = k if one_video else page_hits
            write_page(out, subject, results, videos, own, neighbours, shown, hits, gradcam)
            return results

        return distributed.on_main(search)


def _read(path: Path, options: LoadOptions) -> VideoList:
    """Read the gallery or the queries; `options.root` is that of lists."""
    return read_input(path, options.root if path.suffix.lower() == ".csv" else None, options.allow_external)


def _check_decodes(video: VideoList) -> None:
    """Decode one video, to find errors before the long work."""
    try:
        middle_frames(video.records[0])
    except DecodeError as error:
        raise DataError(f"{error}; if it is a list, its name must end in .csv") from None


def _search_all(
    gallery: Gallery, query: Features, query_videos: VideoList, k: int, drop_duplicates: bool, center: bool
) -> tuple[VideoList, Neighbours, Results]:
    """Search plain and centred; return the gallery, the neighbours of the features reported first, and all numbers."""
    g, videos = gallery.features, gallery.videos(range(len(gallery.features.x)))
    check_classes(videos, query_videos)
    exclude, duplicates = own_rows(videos, query_videos), _duplicates(query.x, g.x, videos, query_videos)
    if drop_duplicates:
        exclude = torch.cat([exclude, duplicates])
    most = max(RANKS[-1], k)
    plain, centred = (gallery.search(query.x, most, exclude, center=how) for how in (False, True))
    numbers: Results = {}
    if (videos.labels >= 0).all() and (query_videos.labels >= 0).all():
        recalls = [recall(neighbours, query, g, RANKS) for neighbours in (plain, centred)]
        numbers = {
            **recalls[center],
            "chance": chance(query, g, exclude),
            "knn": accuracy(vote(plain, g, k), query.label),
            "uncentered" if center else "centered_features": recalls[not center],
        }
    numbers |= {"duplicates": len(duplicates), "num_queries": len(query.x), "centered": center, "knn_k": k}
    return videos, centred if center else plain, numbers


def _duplicates(query: Tensor, gallery: Tensor, gallery_videos: VideoList, query_videos: VideoList) -> Tensor:
    """Return pairs (P, 2) of a query row and a gallery row of another file with bit-identical features."""
    file = functools.cache(os.path.realpath)
    pairs = [
        (q, g)
        for q, g in equal_rows(query, gallery).tolist()
        if file(query_videos.records[q].path) != file(gallery_videos.records[g].path)
    ]
    if pairs:
        _log.warning(
            "%d pairs of a query and a gallery video of another path have bit-identical features (duplicate files?), "
            "the first: %s = %s; --drop-duplicates ignores them",
            len(pairs),
            query_videos.names[pairs[0][0]],
            gallery_videos.names[pairs[0][1]],
        )
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _search_one(
    gallery: Gallery, query: Features, query_videos: VideoList, k: int, drop_duplicates: bool
) -> tuple[VideoList, Neighbours, Results]:
    """Return the videos that are nearest to one video, their similarities, and both as plain data."""
    exclude = torch.empty(0, 2, dtype=torch.int64)
    if drop_duplicates:
        exclude = equal_rows(query.x, gallery.features.x)
    most = k  # doubled each time: all windows of a long video may be the query's own
    while True:  # `own_rows` follows links, so only for videos that were found: a gallery may have a million
        found = gallery.search(query.x, most, exclude)
        rows = found.index[0][torch.isfinite(found.similarity[0])]
        videos = gallery.videos(rows.tolist())
        own = own_rows(videos, query_videos)
        if not len(own):
            break
        exclude = torch.cat([exclude, torch.stack([own[:, 0], rows[own[:, 1]]], dim=1)])
        most *= 2
    rows, videos = rows[:k], videos.rows(range(min(k, len(rows))))
    similarity = found.similarity[:, : len(rows)]
    duplicates = set(equal_rows(query.x, gallery.features.x[rows])[:, 1].tolist())
    hits = [
        {
            "rank": n + 1,
            "similarity": similarity[0, n].item(),
            "label": record.label,
            "class": videos.class_name(record.label),
            "path": videos.names[n],
            "start": record.start,
            "end": record.end,
            "duplicate": n in duplicates,
        }
        for n, record in enumerate(videos.records)
    ]
    results = {"neighbours": hits, "duplicates": len(duplicates)}
    return videos, Neighbours(torch.arange(len(rows))[None], similarity), results


def table(results: Results) -> str:
    """Format the numbers of a retrieval, or the neighbours of one video, as a short table."""
    test = results["protocol"]
    protocol = format_clips(test)
    windows = results["windows"]
    unit = "" if windows is None else f" windows of {windows['window']:g} s"
    gallery = f"{format_count(results['num_gallery'], results['missing_gallery'])}{unit} in the gallery"
    if "neighbours" in results:
        cells = [["", "similarity", "class", "path"]]
        for hit in results["neighbours"]:
            name = with_span(hit["path"], hit["start"], hit["end"]) + " (a duplicate)" * hit["duplicate"]
            cells.append([str(hit["rank"]), f"{hit['similarity']:.4f}", hit["class"], name])
        return "\n".join([f"{results['query']}: {gallery}, {protocol}", *format_table(cells, "><<<")])
    if "chance" not in results:
        return "the lists have no labels: neighbours were searched, accuracies are not defined"
    names = [f"R@{k}" for k in RANKS]

    def percent(numbers: Results, names: Iterable[str]) -> list[str]:
        return [f"{100 * numbers[name]:.1f}" for name in names]

    plain = results["uncentered"] if results["centered"] else results
    centred = results if results["centered"] else results["centered_features"]
    cells = [
        ["percent", *names, "knn", "chance"],
        ["plain", *percent(plain, names), *percent(results, ("knn", "chance"))],
        ["centred", *percent(centred, names), "", ""],
    ]
    queries = format_count(results["num_queries"], results["missing_queries"])
    head = f"{queries} queries, {gallery}, {protocol}, cosine"
    return "\n".join([head, *format_table(cells, "<" + ">" * (len(names) + 2))])
