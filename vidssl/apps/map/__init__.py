"""A page with a zoomable map of features in two dimensions, with the videos."""

import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.map import layout_2d as layouts
from vidssl.apps.map.clusters import check_clusters, find_clusters, typical
from vidssl.apps.map.layout_2d import choose_layout, is_installed, kept_neighbours
from vidssl.apps.map.page import THUMBNAIL, MapColumn, classes_column, map_column, write_map_page
from vidssl.base import distributed
from vidssl.base.atomic import file_hash, replacing
from vidssl.base.command_line_and_notices import leave_out
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError, VidsslError, how_many
from vidssl.base.output_folder import check_file_names
from vidssl.base.progress import Report
from vidssl.base.types import Frames, VideoRecord
from vidssl.data.find_same_videos import own_rows
from vidssl.data.label_videos import describe_labels, label_videos
from vidssl.data.read_labels import match_rows, separator_of
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups
from vidssl.data.video_list import VideoList
from vidssl.data.write_lists import check_beside, check_name, write_lists
from vidssl.evaluation.features import NEAR_COPIES
from vidssl.evaluation.near_copies import near_copies_in
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.search import Neighbours, nearest
from vidssl.evaluation.suspect_videos import SUSPECT_NEIGHBOURS, find_suspects
from vidssl.jobs.extract import extract, open_folder, without_list
from vidssl.jobs.job import File, Model, Natural, NetworkOptions, Videos, file_of, job, path_of, read_videos
from vidssl.jobs.measurement_runner import JobResults, claim_results, format_count, write_csv
from vidssl.page.previews import Preview, of_middles, preview, shrunk
from vidssl.video.reader import open_video, state_of_video

_log = logging.getLogger(__name__)
_MILLISECONDS = 250  # of a frame of an animation
_SIZE = 160, 120  # its pixels at most
_NAMES = {"umap": "UMAP", "pca": "PCA"}


@job
def map(
    videos: Videos | None = None,
    model: Model | None = None,
    *,
    out: File,
    features: File | None = None,
    layout: Literal["auto", "umap", "pca"] = "auto",
    columns: File | None = None,
    clusters: str | None = None,
    group: str | None = None,
    thumbnails: Natural = 1000,
    seed: Natural = 0,
    to: Literal["page", "parquet"] = "page",
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Draw a zoomable map of features as a page, with playing videos, colours by columns, search and selection.

    Labels are those of `labels`, else of the list, else the folders. Beside the page are `videos.csv`, the list of all
    points, with `root.txt` and `classes.txt`: the lists that the page writes belong there.

    Args:
        videos: Videos to extract features of, into `out`; or give `features`.
        model: The network, as in `test`.
        out: Folder for index.html, results.json and videos.csv.
        features: Folder of features, as `extract` writes them, all of them drawn; without it, videos and a network.
        layout: Auto is umap if umap-learn is installed (vidssl[map]) and there are enough videos, else pca.
        columns: CSV file of values to colour by; its rows name videos as those of `labels`.
        clusters: Number of clusters to divide the videos into, by k-means, or auto: the page colours them and lists
            six typical videos of each, clusters.csv has those of all videos.
        group: Regular expression for the recording in a path, as in `compare`, for the clusters.
        thumbnails: Videos that play, evenly spaced over the list; each adds about 9 kB.
        seed: Seed of UMAP.
        to: Parquet also writes videos.parquet beside the page, for embedding-atlas, Spotlight and others.
        progress: As of `test`.
        options: See `NetworkOptions`.
    """
    folder, values = Path(out), None if columns is None else Path(columns)
    if to == "parquet" and not is_installed("pyarrow"):
        raise ConfigError("to=\"parquet\" needs pyarrow: pip install 'vidssl[parquet]'")
    if clusters is not None:
        check_clusters(clusters)
    if features is None:
        if videos is None or model is None:
            raise ConfigError("a map needs features=FOLDER (of vidssl extract), or videos and a network")
        features = folder / "features"
        check_file_names(folder, ["features/features.npy"])
        claim_results(folder, "map", {}, [path_of(videos), file_of(model), values, options.get("labels")])
        listed = read_videos(videos, options)
        for name in listed.names:
            check_name(name)  # now, not after hours
        if values is not None:
            read_columns(values, listed)
        extract(model, listed, out=features, **without_list(options))
    elif videos is not None or model is not None or options.keys() - {"root", "labels", "workers"}:
        raise ConfigError("features=FOLDER has features already: leave out videos, the network and its options")
    if not distributed.is_main():  # of several processes, which have extracted the features together
        return JobResults()
    root = None if "root" not in options else Path(options["root"])
    settings = {"layout": layout, "seed": seed, "thumbnails": thumbnails, "clusters": clusters, "group": group}
    settings["labels"] = None if "labels" not in options else str(options["labels"])
    results = _draw(Path(features), folder, settings, values, root, to == "parquet", options.get("workers", 2))
    results.text, results.file = map_summary(results), folder / "index.html"
    return results


def _draw(
    features: Path, out: Path, settings: Tree, columns: Path | None, root: Path | None, parquet: bool, workers: int
) -> JobResults:
    """Write a page with a map of the features in a folder, and videos.parquet; the settings are those of `map`."""
    folder = open_folder(features, "give a folder that vidssl extract has written", "vidssl extract writes them")
    count, features_of, seed = len(folder.features.x), folder.features, settings["seed"]
    leave_out(features_of.missing)
    if not count:
        raise DataError(f"{features} has no features: none of the videos could be read")
    name, reason = choose_layout(settings["layout"], count)
    videos = label_videos(folder.videos(range(count), root), settings["labels"])
    if len(videos) > count:
        _log.warning("%d labelled spans have no features: extract them with these labels", len(videos) - count)
        videos = videos.rows(range(count))
    check_beside(out, videos.root, videos.classes, ["videos"], [features])
    claim_results(out, "map", {}, [columns])
    records = [videos.records.row(n) for n in range(count)]
    write_lists(out, videos.root, {"videos": records}, videos.classes, [features])
    added, matched = ([], 0) if columns is None else read_columns(columns, videos)
    _log.info("layout of %d features: %s%s", count, _NAMES[name], f", {reason}" if reason else "")
    x = features_of.x.numpy()
    overlapping = own_rows(videos, videos)  # each row with itself, and with the windows that it overlaps
    fps = folder.request.get("protocol", {}).get("fps")
    copies, not_searched = near_copies_in(features / NEAR_COPIES, videos, [features_of.x], overlapping, fps, workers)
    near = nearest(features_of.x, features_of.x, SUSPECT_NEIGHBOURS, overlapping)
    suspects, shown_suspects = find_suspects(videos, features_of.x, near, copies)
    suspects["not_searched"] = not_searched
    _write_near_copies(out / "near_copies.csv", videos, suspects["near_copies"], fps)
    places = layouts.layout(x, name, seed)
    class_kind, labels = _class_names(videos)
    shown_columns, of_clusters = [*added], None
    if settings["clusters"] is not None:
        of_clusters = _clusters(videos, features_of.x, settings, out, shown_columns, shown_suspects)
    previews, animations, missing = _previews(videos, fps, settings["thumbnails"], parquet)
    num_files = len({*videos.names})
    content: Results = {
        "labels": describe_labels(labelled_by_folders(videos)),
        "num_videos": num_files,
        "num_windows": count if num_files < count else None,
        "dim": x.shape[1],
        "layout": name,
        "layout_reason": reason,
        "seed": seed,
        "neighbours_kept": kept_neighbours(x, places),
        "thumbnails": len(previews),
        "not_decoded": [{"path": path, "reason": text} for path, text in missing.items()],
        "suspects": suspects,
        "clusters": of_clusters,
        "columns": [column.name for column in added],
        "columns_matched": matched,
        "missing": [{"path": path, "reason": text} for path, text in features_of.missing],
        "features": str(features),
    }
    settings = {**settings, "layout": name, "columns": columns and file_hash(columns)}
    request = {**folder.request, "command": "map", "map": settings}
    results = JobResults(complete(content, request=request, overlap=None, query=folder.request["list"]))
    by_class = [classes_column(class_kind, labels, videos.classes)] if any(labels) else []
    if num_files < count:
        by_class = [*_window_columns(records), *by_class]
    write_map_page(
        out / "index.html",
        title=f"Map of {videos.root.name}",
        places=places,
        records=records,
        columns=[*by_class, *shown_columns],
        previews=previews,
        near=near.index.tolist(),
        suspects=shown_suspects,
        details=_details(results, videos.root, features_of.made_by["network"]),
        left_out=[reason for _, reason in features_of.missing],
    )
    if parquet:
        write_parquet(out / "videos.parquet", videos, labels, places, near, animations)
    existing_results(out, request, reuse=False)
    write_results(out, results)
    return results


def _write_near_copies(path: Path, videos: VideoList, pairs: Sequence[Tree], fps: float | None) -> None:
    """Write near copies as a CSV file, by which a person keeps the better one; none without pairs.

    The columns ending in `_1` and `_2` are of both: path, start and end, and of the file bytes, width and height as
    stored, and seconds; what cannot be read is empty. `fps` is that of folders of images without their own.
    """
    path.unlink(missing_ok=True)
    record_of = dict(zip(videos.names, videos.records, strict=True))

    @cache
    def facts(name: str) -> tuple[object, ...]:
        record = record_of[name]
        with suppress(VidsslError), open_video(record.path, fps=record.fps or fps or 25) as video:
            size = (state_of_video(record.path) or [None])[0]
            return size, video.meta.width, video.meta.height, round(video.meta.duration, 2)
        return (None,) * 4

    if pairs:
        columns = ("path", "start", "end", "bytes", "width", "height", "seconds")
        rows = [
            [value for of in pair["videos"] for value in (*(of.get(name) for name in columns[:3]), *facts(of["path"]))]
            + [round(pair["similarity"], 4), "yes" if pair["equal_files"] else "no"]
            for pair in pairs
        ]
        header = [*(f"{name}_{n}" for n in (1, 2) for name in columns), "similarity", "equal_files"]
        labels = videos.label_source
        write_csv(path, header, rows, separator_of(labels) if isinstance(labels, Path) else ",")


def _clusters(
    videos: VideoList,
    x: Tensor,
    settings: Tree,
    out: Path,
    columns: list[MapColumn],
    lists: dict[str, list[tuple[int, str]]],
) -> Tree:
    """Find clusters, write clusters.csv, and add a column of colours and the typical videos of each to the page."""
    recordings = recording_groups(videos, settings["group"]).number
    clusters = find_clusters(x, recordings, settings["clusters"], settings["seed"])
    columns.insert(0, map_column("cluster", [str(number + 1) for number in clusters.number]))
    rows = [videos.records.row(n) for n in range(len(videos))]
    write_csv(
        out / "clusters.csv",
        ("path", "start", "end", "cluster", "distance"),
        [
            (row.path, row.start, row.end, number + 1, round(float(distance), 4))
            for row, number, distance in zip(rows, clusters.number, clusters.distance, strict=True)
        ],
    )
    counts = np.bincount(clusters.number).tolist()
    lists |= {
        f"Typical of cluster {number}": [(row, f"of {count:,} videos") for row in rows_of_cluster]
        for number, (count, rows_of_cluster) in enumerate(zip(counts, typical(clusters, recordings), strict=True), 1)
    }
    return {"sizes": counts, "silhouette": clusters.silhouette, "recordings": clusters.line}


def _window_columns(records: Sequence[VideoRecord]) -> list[MapColumn]:
    """Make columns of the file, if there are several, and of the start of each window."""
    columns = [classes_column("file", [record.path for record in records])]
    columns.append(MapColumn("start in seconds", (), [record.start or 0.0 for record in records]))
    return columns if len(columns[0].classes) > 1 else columns[1:]


def _class_names(videos: VideoList) -> tuple[str, list[str]]:
    """Return what divides the videos, `class` or `folder`, and its name for each, "" if unknown.

    Without labels these are the folders, below the one that all are in.
    """
    if (videos.labels >= 0).any():
        return "class", [videos.class_name(label) if label >= 0 else "" for label in videos.labels.tolist()]
    folders = [PurePosixPath(name).parent.parts for name in videos.names]
    shared = len([*takewhile(lambda level: len({*level}) == 1, zip(*folders, strict=False))])  # levels above all
    return "folder", [parts[shared] if len(parts) > shared else "" for parts in folders]


def _previews(
    videos: VideoList, fps: float | None, most: int, animated: bool
) -> tuple[dict[int, Preview], dict[int, bytes], dict[str, str]]:
    """Make thumbnails of at most `most` videos, evenly spaced, and animations of the same if they are needed.

    The third result are those that cannot be decoded, and why.
    """
    count = min(most, len(videos))
    rows = [n * len(videos) // count for n in range(count)]
    thumbnails, animations, missing = {}, {}, {}
    made = of_middles([videos.records[row] for row in rows], partial(_thumbnail, animated), fps)
    for row, clips in zip(rows, made, strict=True):
        if isinstance(clips, str):
            missing[videos.names[row]] = clips
        else:
            thumbnails[row], animations[row] = clips
    if missing:
        _log.warning("no thumbnails of %d videos, the first: %s", len(missing), next(iter(missing.values())))
    return thumbnails, animations, missing


def _thumbnail(animated: bool, frames: Frames) -> tuple[Preview, bytes]:
    return preview(frames, *THUMBNAIL), animation(frames) if animated else b""


def _details(results: Results, root: Path, network: str) -> list[tuple[str, str]]:
    """Describe the map at the head of its page, of which the first three are always there."""
    shown = results["thumbnails"]
    details = {
        "Videos": _counts(results),
        "Network": network,
        "Layout": _NAMES[results["layout"]] + (f" (seed {results['seed']})" if results["layout"] == "umap" else ""),
        "Folder": str(root),
        "Labels": results["labels"].removeprefix("labels: "),
        "Neighbours": _kept(results),
        "Thumbnails": f"{shown:,}" if shown < (results["num_windows"] or results["num_videos"]) else "",
        "Cannot be decoded": f"{len(results['not_decoded'])} videos" if results["not_decoded"] else "",
        "Near copies": f"{_copies(results)}. Not found: mirrored, of another speed, much compressed with little motion",
        "Judged labels": results["suspects"]["labels"],
    }
    return [(name, value) for name, value in details.items() if value]


def _kept(results: Results) -> str:
    """Say how many neighbours the map keeps."""
    kept, by = results["neighbours_kept"], "of the 10 nearest by features are among the 10 nearest on the map"
    return "" if kept is None else f"{100 * kept:.0f}% {by}"


def _copies(results: Results) -> str:
    """Say where pairs of near copies are listed, and what was not searched."""
    listed = "listed with the sizes of the files in near_copies.csv" * bool(results["suspects"]["near_copies"])
    return "; ".join(filter(None, [listed or "none", results["suspects"]["not_searched"]]))


def _counts(results: Results) -> str:
    """Count videos, and windows if these are the points."""
    videos = format_count(results["num_videos"], [*{gap["path"] for gap in results["missing"]}], "video")
    return videos + (f", {how_many(results['num_windows'], 'window')}" if results["num_windows"] else "")


def map_summary(results: Results) -> str:
    """Describe the map in a few lines."""
    reason = results["layout_reason"]
    lines = [
        results["labels"],
        f"{_counts(results)} x {results['dim']} features, layout "
        f"{_NAMES[results['layout']]}{f' ({reason})' if reason else ''}, {results['thumbnails']} thumbnails",
    ]
    lines += filter(None, [_kept(results)])
    suspects = results["suspects"]
    counts = [f"{name.replace('_', ' ')} {len(rows)}" for name, rows in suspects.items() if isinstance(rows, list)]
    lines += [f"to look at: {', '.join(counts)}", f"judged labels: {suspects['labels']}"]
    lines += [f"near copies: {_copies(results)}"]
    if results["clusters"] is not None:
        sizes = ", ".join(f"{size:,}" for size in results["clusters"]["sizes"])
        lines.append(
            f"{len(results['clusters']['sizes'])} clusters of {sizes} videos. {results['clusters']['recordings']}"
        )
    if results["columns"]:
        lines.append(f"{results['columns_matched']} of them have values of {', '.join(results['columns'])}")
    return "\n".join(lines)


# Columns to colour by ---------------------------------------------------------------------------------------


def read_columns(path: Path, videos: VideoList) -> tuple[list[MapColumn], int]:
    """Read the columns of a CSV file for the videos that its rows name, as labels do, by path or name of the file.

    Returns the columns other than of paths and times, and how many of the videos have a row; the others have no values.
    """
    names, rows = match_rows(path, videos)
    columns = [map_column(name, ["" if row is None else row[n] for row in rows]) for name, n in names.items()]
    return columns, sum(row is not None for row in rows)


# Parquet ----------------------------------------------------------------------------------------------------


def animation(frames: Frames) -> bytes:
    """Encode frames (T, 3, H, W), shrunk, as an animated WebP, a fifth of a GIF, that plays for ever."""
    from PIL import Image

    file = io.BytesIO()
    images = [Image.fromarray(image) for image in shrunk(frames, *_SIZE)]
    images[0].save(file, "WEBP", save_all=True, append_images=images[1:], duration=_MILLISECONDS, quality=60, method=2)
    return file.getvalue()


def write_parquet(
    path: Path,
    videos: VideoList,
    labels: Sequence[str],
    places: NDArray[np.float32],
    near: Neighbours,
    animations: Mapping[int, bytes],
) -> None:
    """Write a row for each video.

    The columns are `path` (absolute), `start` and `end` in seconds where the list has spans, `label` (a name, or null),
    `x` and `y` (`places` (N, 2)), `neighbors` with the rows and cosine distances of the nearest videos, as
    embedding-atlas reads it, and `image` with the bytes of an animation by row, as data sets of Hugging Face store it.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, pa.DataType] = {
        "path": pa.string(),
        "label": pa.string(),
        "x": pa.float32(),
        "y": pa.float32(),
        "neighbors": pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())}),
        "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    }
    if any((record.start, record.end) != (None, None) for record in videos.records):
        columns |= {"start": pa.float64(), "end": pa.float64()}
    rows = []
    for n, record in enumerate(videos.records):
        known = near.index[n] >= 0
        distances = 1 - near.similarity[n, known].double()
        image = {"bytes": animations[n], "path": f"{n}.webp"} if n in animations else None
        neighbors = {"ids": near.index[n, known].tolist(), "distances": distances.tolist()}
        row = {"path": str(Path(record.path).absolute()), "start": record.start, "end": record.end, "image": image}
        rows.append({**row, "label": labels[n] or None, "x": places[n, 0], "y": places[n, 1], "neighbors": neighbors})
    with replacing(path) as file:
        parquet.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), file)
