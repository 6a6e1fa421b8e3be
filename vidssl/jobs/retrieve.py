"""Retrieval: extract, search, measure, and a page to look at."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidssl import comm
from vidssl.data.records import VideoList, read_list
from vidssl.data.samplers import Uniform
from vidssl.data.video import open_video
from vidssl.engine.run import choose_device
from vidssl.errors import DataError
from vidssl.evaluation.features import extract
from vidssl.evaluation.metrics import Neighbours
from vidssl.evaluation.protocols import KNN, Retrieval, own_rows
from vidssl.jobs.backbones import Options, Subject, load_subject
from vidssl.progress import progress
from vidssl.types import Features, Frames
from vidssl.viz import Hit, Preview, QueryRow, Shot, preview, retrieval_sheet, write_retrieval_page

RANKS = (1, 5, 10, 20)


def retrieve(
    options: Options,
    gallery: Path,
    query: Path,
    out: Path,
    *,
    center: bool = False,
    k: int = 10,
    shown_queries: int = 48,
    shown_hits: int = 6,
) -> dict[str, Any]:
    """Search the gallery with each query; write `results.json`, `index.html` and the still `retrieval.png`.

    Args:
        options: Which backbone, which clips.
        gallery: List to search in.
        query: List of queries. A query that is in the gallery too does not find itself.
        out: Folder for the results, made where it is missing.
        center: Report centred features first (see `Retrieval`); the other numbers are under `uncentered`
            or `centered_features`.
        k: Neighbours that vote in kNN.
        shown_queries: Queries on the page, evenly spaced over the list.
        shown_hits: Nearest videos on the page.

    Returns:
        What is in `results.json`, on every process; the main one alone writes. Without labels in both lists
        it has no accuracies.

    Raises:
        DataError: A list or a video cannot be used, or the lists name different classes.
    """
    if out.exists() and not out.is_dir():  # told before hours of work that would have no place
        raise DataError(f"cannot write to {out}: it is a file; name a folder")
    lists = [read_list(path, options.root, options.allow_external) for path in (gallery, query)]
    if lists[0].classes != lists[1].classes:
        raise DataError(
            f"{gallery} and {query} have different classes.txt: a label must mean the same in both"
        )
    with comm.joined(choose_device(options.device)):
        subject = load_subject(options)
        g = extract(subject.backbone, lists[0], subject.test, subject.device, "gallery")
        q = extract(subject.backbone, lists[1], subject.test, subject.device, "queries")
    lists = [_measured(*pair) for pair in zip(lists, (g, q), strict=True)]
    own = own_rows(*lists)
    search = Retrieval(Retrieval.Config(ks=RANKS, center=center))
    neighbours = search.search(g, q, own)
    numbers: dict[str, Any] = {}
    if all(record.label >= 0 for videos in lists for record in videos.records):
        other = Retrieval(Retrieval.Config(ks=RANKS, center=not center))(g, q, own)
        other.pop("chance")
        numbers = {
            **search(g, q, own),
            **KNN(KNN.Config(k=k))(g, q, own),
            "uncentered" if center else "centered_features": other,
        }
    results = {
        **numbers,
        "num_queries": len(q.x),
        "num_gallery": len(g.x),
        "missing_queries": [{"path": path, "reason": reason} for path, reason in q.missing],
        "missing_gallery": [{"path": path, "reason": reason} for path, reason in g.missing],
        "centered": center,
        "knn_k": k,
        "gallery": str(gallery),
        "query": str(query),
        **subject.describe(),
    }
    if not comm.is_main():
        return results
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        _write_page(out / "index.html", subject, results, lists, neighbours, shown_queries, shown_hits)
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}") from None
    return results


def table(results: dict[str, Any]) -> str:
    """Write the numbers of a retrieval as a short table for a terminal."""
    names = [name for name in (*(f"R@{k}" for k in RANKS), "knn", "chance") if name in results]
    if not names:
        return "no labels in the lists: neighbours were searched, accuracies are not defined"
    cells = [f"{100 * results[name]:.1f}" for name in names]
    widths = [max(len(name), len(cell)) for name, cell in zip(names, cells, strict=True)]
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
        for row in (names, cells)
    ]
    test = results["protocol"]
    protocol = (
        f"{_counts(results)}, {test['clips']} clips x "
        f"{test['crops']} crops of {test['size']}², {'centred' if results['centered'] else 'plain'} cosine, percent"
    )
    return "\n".join([protocol, *lines])


def share(found: int, missing: Sequence[object]) -> str:
    """Say how many were found, and of how many where some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def _counts(results: dict[str, Any]) -> str:
    queries = share(results["num_queries"], results["missing_queries"])
    return f"{queries} queries, {share(results['num_gallery'], results['missing_gallery'])} in the gallery"


def _measured(videos: VideoList, features: Features) -> VideoList:
    """Leave out of a list what could not be read: its rows are those of the features then."""
    rows = features.index.tolist()
    return replace(
        videos, names=tuple(videos.names[n] for n in rows), records=tuple(videos.records[n] for n in rows)
    )


def video_preview(path: str) -> Preview:
    """Make the small playing picture of a video."""
    return preview(_middle(path))


def _middle(path: str) -> Frames:
    """Eight frames of the middle of a video, three seconds at most."""
    with open_video(path, fps=25) as video:  # that of a folder of images; any does, for a preview
        sampler = Uniform(
            Uniform.Config(frames=8, seconds=min(3.0, video.meta.duration), clips=1, short="hold")
        )
        return video.frames(sampler(video.meta, [])[0].indices)


def _write_sheet(path: Path, queries: list[QueryRow], class_names: tuple[str, ...]) -> None:
    """Draw six of the queries with their nearest videos, for places that cannot play a page."""

    def shot(video: str, label: int, hit: bool | None) -> Shot:
        name = class_names[label] if 0 <= label < len(class_names) else Path(video).name
        return Shot(_middle(video), name, hit)

    def verdict(row: QueryRow, hit: Hit) -> bool | None:
        return None if -1 in (row.label, hit.label) else row.label == hit.label

    rows = [
        [
            shot(row.video, row.label, None),
            *(shot(hit.video, hit.label, verdict(row, hit)) for hit in row.hits),
        ]
        for row in queries[:: max(1, len(queries) // 6)][:6]
    ]
    path.write_bytes(retrieval_sheet(rows))


def _write_page(
    path: Path,
    subject: Subject,
    results: dict[str, Any],
    lists: list[VideoList],
    neighbours: Neighbours,
    shown_queries: int,
    shown_hits: int,
) -> None:
    gallery, query = lists
    count = min(shown_queries, len(query.records))
    chosen = [n * len(query.records) // count for n in range(count)]
    queries = [
        QueryRow(
            query.records[n].path,
            query.names[n],
            query.records[n].label,
            tuple(
                Hit(gallery.records[g].path, gallery.names[g], gallery.records[g].label, similarity)
                for g, similarity in zip(
                    neighbours.index[n, :shown_hits].tolist(),
                    neighbours.similarity[n, :shown_hits].tolist(),
                    strict=True,
                )
                if similarity > float("-inf")
            ),
        )
        for n in chosen
    ]
    _write_sheet(path.with_name("retrieval.png"), queries, query.classes)
    wanted = dict.fromkeys(
        video for row in queries for video in (row.video, *(hit.video for hit in row.hits))
    )
    test, origin = subject.test, subject.origin
    lacking = [len(results[name]) for name in ("missing_queries", "missing_gallery")]
    write_retrieval_page(
        path,
        title=f"Retrieval: {_title(query)} in {_title(gallery)}",
        results={name: value for name, value in results.items() if isinstance(value, int | float)},
        queries=queries,
        previews={
            video: video_preview(video) for video in progress(wanted, title="page", unit="video", leave=False)
        },
        class_names=query.classes,
        details=[
            (
                "Checkpoint",
                origin["path"] if "step" not in origin else f"{origin['path']}, step {origin['step']}",
            ),
            ("Backbone", str(subject.run.backbone.name)),
            (
                "Protocol",
                f"{test.clips} clips x {test.crops} crops of {test.size}², {test.clip.frames} frames each",
            ),
            *(
                [("Cannot be read", f"{lacking[0]} queries, {lacking[1]} of the gallery")]
                if any(lacking)
                else []
            ),
        ],
        total_queries=len(query.records),
    )


def _title(videos: VideoList) -> str:
    return f"{videos.path.parent.name}/{videos.path.stem}"
