"""A page with a zoomable map of features in two dimensions, with the videos."""

import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.map import layout_2d as layouts
from vidssl.apps.map.layout_2d import UMAP_NEEDS, check_layout, has_umap, is_installed, kept_neighbours
from vidssl.apps.map.page import THUMBNAIL, MapColumn, Suspects, classes_column, map_column, write_map_page
from vidssl.apps.map.suspect_videos import (
    SUSPECT_NEIGHBOURS,
    find_near_duplicates,
    find_outliers,
    mean_distances,
    score_labels,
    self_matches,
)
from vidssl.base import distributed
from vidssl.base.atomic import file_hash, replacing
from vidssl.base.command_line_and_notices import leave_out
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.output_folder import check_file_names
from vidssl.base.progress import Report, progress
from vidssl.base.types import Frames, VideoRecord
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups, why_folders_are_no_classes
from vidssl.data.video_list import VideoList, read_rows
from vidssl.data.write_lists import check_beside, check_name, write_lists
from vidssl.evaluation.features import FeatureFolder, read_folder
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.search import Neighbours, nearest
from vidssl.jobs.extract import extract
from vidssl.jobs.job import File, Model, Natural, NetworkOptions, Videos, file_of, job, path_of, read_videos
from vidssl.jobs.measurement_runner import JobResults, claim_results, format_count
from vidssl.page.previews import Preview, middle_frames, preview, shrunk

_log = logging.getLogger(__name__)
MOST_LABELS = 20_000  # videos whose labels are judged: the time of the regressions grows with them
_SHOWN = 200  # suspects of a kind on the page
_PARQUET = "videos.parquet"
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
    thumbnails: Natural = 1000,
    seed: Natural = 0,
    to: Literal["page", "parquet"] = "page",
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Draw a zoomable map of features as a page, with playing videos, colours by columns, search and selection.

    Beside the page are `videos.csv`, the list of all points, with `root.txt` and `classes.txt`: the lists that the page
    writes belong there.

    Args:
        videos: Videos to extract features of, into `out`; or give `features`.
        model: The network, as in `test`.
        out: Folder for index.html, results.json and videos.csv.
        features: Folder of `extract`; without it, videos and a network.
        layout: Auto is umap if umap-learn is installed (vidssl[map]) and there are enough videos, else pca.
        columns: CSV file of values to colour by, joined by the column path.
        thumbnails: Videos that play, evenly spaced over the list; each adds about 9 kB.
        seed: Seed of UMAP.
        to: Parquet also writes videos.parquet beside the page, for embedding-atlas, Spotlight and others.
        progress: As of `test`.
        options: See `NetworkOptions`.
    """
    folder, values = Path(out), None if columns is None else Path(columns)
    if to == "parquet":
        check_pyarrow()
    if features is None:
        if videos is None or model is None:
            raise ConfigError("a map needs features=FOLDER (of vidssl extract), or videos and a network")
        features = folder / "features"
        check_file_names(folder, ["features/features.npy"])
        claim_results(folder, "map", {}, [path_of(videos), file_of(model), values])
        listed = read_videos(videos, options)
        for name in listed.names:
            check_name(name)  # now, not after hours
        of_network = options.copy()
        of_network.pop("root", None)
        of_network.pop("allow_external", None)
        extract(model, listed, out=features, **of_network)
    elif videos is not None or model is not None or options.keys() - {"root"}:
        raise ConfigError("features=FOLDER has features already: leave out videos, the network and its options")
    if not distributed.is_main():  # of several processes, which have extracted the features together
        return JobResults()
    root = options.get("root")
    videos_in = None if root is None else Path(root)
    results = draw_map(Path(features), folder, layout, values, thumbnails, seed, videos_in, to == "parquet")
    summary = JobResults(results)
    summary.text, summary.file = "\n".join(map_summary(results)), folder / "index.html"
    return summary


def draw_map(
    features: Path,
    out: Path,
    layout: str = "auto",
    columns: Path | None = None,
    thumbnails: int = 1000,
    seed: int = 0,
    root: Path | None = None,
    parquet: bool = False,
) -> Results:
    """Write a page with a map of the features in a folder, and videos.parquet; the options are those of `map`."""
    try:
        folder = read_folder(features, "give a folder that vidssl extract has written")
    except OSError as error:
        raise DataError(f"cannot read {features}: {error.strerror}; vidssl extract writes such folders") from None
    count = len(folder.features.x)
    leave_out(folder.features.missing)
    if not count:
        raise DataError(f"{features} has no features: none of the videos could be read")
    name, reason = _choose(layout, count)
    check_layout(name, count)
    videos = folder.videos(range(count), root)
    check_beside(out, videos.root, videos.classes, ["videos"], [features])
    claim_results(out, "map", {}, [columns])
    records = [videos.records.row(n) for n in range(count)]
    write_lists(out, videos.root, {"videos": records}, videos.classes, [features])
    added, matched = ([], 0) if columns is None else read_columns(columns, records)
    _log.info("layout of %d features: %s%s", count, _NAMES[name], f", {reason}" if reason else "")
    x = folder.features.x.numpy()
    places = layouts.layout(x, name, seed)
    near = nearest(folder.features.x, folder.features.x, SUSPECT_NEIGHBOURS, self_matches(count))
    class_kind, labels = _class_names(videos)
    suspects = find_suspects(videos, folder.features.x, near)
    previews, animations, missing = _previews(videos, folder, thumbnails, parquet)
    results: Results = {
        "num_videos": count,
        "dim": x.shape[1],
        "layout": name,
        "layout_reason": reason,
        "seed": seed,
        "neighbours_kept": kept_neighbours(x, places),
        "thumbnails": len(previews),
        "not_decoded": [{"path": path, "reason": text} for path, text in missing.items()],
        "suspects": suspects.results(videos.names),
        "columns": [column.name for column in added],
        "columns_matched": matched,
        "missing": [{"path": path, "reason": text} for path, text in folder.features.missing],
        "features": str(features),
    }
    settings = {"layout": name, "seed": seed, "thumbnails": thumbnails, "columns": columns and file_hash(columns)}
    request = {**folder.request, "command": "map", "map": settings}
    results = complete(results, request=request, overlap=None, query=folder.request["list"])
    by_class = [classes_column(class_kind, labels, videos.classes)] if any(labels) else []
    write_map_page(
        out / "index.html",
        title=f"Map of {features.name}",
        places=places,
        records=records,
        columns=[*by_class, *added],
        previews=previews,
        near=near.index.tolist(),
        suspects=suspects.sections(videos.names),
        details=[("Folder", str(videos.root)), ("Network", folder.features.made_by["network"]), *_details(results)],
        left_out=[reason for _, reason in folder.features.missing],
    )
    if parquet:
        write_parquet(out / _PARQUET, videos, labels, places, near, animations)
    existing_results(out, request, reuse=False)
    write_results(out, results)
    return results


def _choose(layout: str, count: int) -> tuple[str, str]:
    """Choose the layout: its name, and why `auto` is this one."""
    if layout != "auto":
        return layout, ""
    if not has_umap():
        return "pca", "as umap-learn is not installed: pip install 'vidssl[map]'"
    if count < UMAP_NEEDS:
        return "pca", f"as UMAP needs {UMAP_NEEDS} videos or more"
    return "umap", ""


def _class_names(videos: VideoList) -> tuple[str, list[str]]:
    """Return what divides the videos, `class` or `folder`, and its name for each, "" if unknown.

    Without labels these are the folders, below the one that all are in.
    """
    if (videos.labels >= 0).any():
        return "class", [videos.class_name(label) if label >= 0 else "" for label in videos.labels.tolist()]
    folders = [PurePosixPath(name).parent.parts for name in videos.names]
    shared = len([*takewhile(lambda level: len({*level}) == 1, zip(*folders, strict=False))])  # levels above all
    names = [parts[shared] if len(parts) > shared else "" for parts in folders]
    return "folder", names


def _previews(
    videos: VideoList, folder: FeatureFolder, most: int, animated: bool
) -> tuple[dict[int, Preview], dict[int, bytes], dict[str, str]]:
    """Make thumbnails of at most `most` videos, evenly spaced, and animations of the same if wanted.

    The third result are those that cannot be decoded, and why.
    """
    fps = folder.request.get("protocol", {}).get("fps")
    count = len(videos)
    rows = np.unique(np.arange(min(most, count)) * count // max(1, min(most, count))).tolist()
    width, height, frames, quality = THUMBNAIL
    thumbnails, animations, missing = {}, {}, {}
    for row in progress(rows, title="thumbnails", unit="video", leave=False):
        try:
            middle = middle_frames(videos.records[row], fps)
            thumbnails[row] = preview(middle, width, height, frames, quality)
            if animated:
                animations[row] = animation(middle)
        except DataError as error:
            missing[videos.names[row]] = str(error)
    if missing:
        _log.warning("no thumbnails of %d videos, the first: %s", len(missing), next(iter(missing.values())))
    return thumbnails, animations, missing


def _details(results: Results) -> list[tuple[str, str]]:
    """Describe the map at the head of its page."""
    details = {
        "Videos": format_count(results["num_videos"], results["missing"]),
        "Layout": _NAMES[results["layout"]] + (f" (seed {results['seed']})" if results["layout"] == "umap" else ""),
        "10 nearest neighbours kept on the map": _kept(results),
        "Thumbnails": f"{results['thumbnails']:,}" if results["thumbnails"] < results["num_videos"] else "",
        "Cannot be decoded": f"{len(results['not_decoded'])} videos" if results["not_decoded"] else "",
    }
    return [(name, value) for name, value in details.items() if value]


def _kept(results: Results) -> str:
    kept = results["neighbours_kept"]
    return "" if kept is None else f"{100 * kept:.0f}%"


def map_summary(results: Results) -> list[str]:
    """Describe the map in a line or two."""
    reason = f" ({results['layout_reason']})" if results["layout_reason"] else ""
    lines = [
        f"{format_count(results['num_videos'], results['missing'])} videos x {results['dim']} features, "
        f"layout {_NAMES[results['layout']]}{reason}, {results['thumbnails']} thumbnails"
    ]
    if kept := _kept(results):
        lines.append(f"{kept} of the 10 nearest neighbours by features are among the 10 nearest on the map")
    counts = {name.replace("_", " "): len(rows or ()) for name, rows in results["suspects"].items() if name != "reason"}
    lines.append("to look at: " + ", ".join(f"{name} {number}" for name, number in counts.items()))
    if results["columns"]:
        lines.append(f"{results['columns_matched']} of them have values of {', '.join(results['columns'])}")
    return lines


# Columns to colour by ---------------------------------------------------------------------------------------


def read_columns(path: Path, records: Sequence[VideoRecord]) -> tuple[list[MapColumn], int]:
    """Read the columns of a CSV file `path[,start,end],…` for videos with paths as in their list.

    Rows are found by path, and by start and end too if the file has both columns. Returns the columns other than these,
    and how many of the videos have a row; the others have no values. A DataError names a header without `path`, a row
    of another length, two rows of one video, and a file without a row of any video.
    """
    rows = read_rows(path, "columns=FILE is a CSV file with the column path")
    header = [name.strip() for name in next(rows, (1, []))[1]]
    keys = ("path", "start", "end") if {"start", "end"} <= {*header} else ("path",)
    if "path" not in header or len({*header}) < len(header) or len(header) == len(keys):
        text = ",".join(header)[:200]
        raise DataError(f"{path}: header {text!r} needs path and at least one more column, each name once")
    rows_by_key: dict[tuple[str | float | None, ...], list[str]] = {}
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}:{line}: {len(row)} fields, the header has {len(header)}; quote text with commas")
        fields = dict(zip(header, row, strict=True))
        try:
            spans = [float(fields[name]) if fields[name] else None for name in keys[1:]]
        except ValueError as error:
            raise DataError(f"{path}:{line}: {error}: start and end are seconds") from None
        key = (fields["path"], *spans)
        if key in rows_by_key:
            raise DataError(f"{path}:{line}: {fields['path']!r} is there twice: delete one row")
        rows_by_key[key] = row
    matched = [rows_by_key.get(tuple(getattr(record, name) for name in keys)) for record in records]
    count = sum(row is not None for row in matched)
    if not count:
        first = next((key[0] for key in rows_by_key), "nothing")
        raise DataError(f"{path} has no row of the {len(records)} videos: it has {first!r}, they {records[0].path!r}")
    columns = [
        map_column(name, ["" if row is None else row[n] for row in matched])
        for n, name in enumerate(header)
        if name not in keys
    ]
    return columns, count


# What a person should look at -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuspectVideos:
    """What was found, by rows of the list."""

    outliers: list[tuple[int, float]]  # row, mean cosine distance to its neighbours
    duplicates: list[tuple[int, int, float]]  # rows, cosine similarity
    labels: list[tuple[int, str, str, float]]  # row, label, proposed label, margin
    reason: str  # why no labels were judged; empty: they were

    def results(self, names: Sequence[str]) -> Tree:
        """Describe all of them for results.json."""
        return {
            "outliers": [{"path": names[row], "distance": value} for row, value in self.outliers],
            "near_duplicates": [
                {"paths": [names[a], names[b]], "similarity": value} for a, b, value in self.duplicates
            ],
            "wrong_labels": [
                {"path": names[row], "label": label, "proposed": proposed, "margin": margin}
                for row, label, proposed, margin in self.labels
            ],
            "reason": self.reason,
        }

    def sections(self, names: Sequence[str]) -> list[Suspects]:
        """Describe those that the page lists."""
        labels = [(row, f"{label}: perhaps {proposed}") for row, label, proposed, _ in self.labels]
        duplicates = [(a, f"as {names[b]}, similarity {value:.3f}") for a, b, value in self.duplicates]
        outliers = [(row, f"mean distance {value:.3f}") for row, value in self.outliers]
        kinds = {"Probable wrong labels": labels, "Near-duplicates": duplicates, "Outliers": outliers}
        return [Suspects(name, rows[:_SHOWN], len(rows)) for name, rows in kinds.items()]


def find_suspects(videos: VideoList, x: Tensor, near: Neighbours) -> SuspectVideos:
    """Find the suspects of a list with features (N, D) and their neighbours; without labels folders are labels."""
    distance = mean_distances(near)
    outliers = [(int(row), float(distance[row])) for row in find_outliers(near)]
    listed, labels, reason = labelled_by_folders(videos), [], ""
    if (listed.labels < 0).all():
        reason = why_folders_are_no_classes(videos) or "no labels, and no folders of two videos or more"
    elif len(videos) > MOST_LABELS:
        reason = f"more than {MOST_LABELS:,} videos"
    else:
        scores = score_labels(x, listed.labels, recording_groups(listed).number)
        for row in scores.suspects:
            label, proposed = listed.class_name(listed.labels[row]), listed.class_name(scores.proposed[row])
            labels.append((int(row), label, proposed, float(scores.margin[row])))
    return SuspectVideos(outliers, find_near_duplicates(near), labels, reason)


# Parquet ----------------------------------------------------------------------------------------------------


def check_pyarrow() -> None:
    """Raise a ConfigError if pyarrow is not installed; call it before long work."""
    if not is_installed("pyarrow"):
        raise ConfigError("to=\"parquet\" needs pyarrow: pip install 'vidssl[parquet]'")


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

    rows = range(len(videos))
    records = [videos.records[row] for row in rows]
    neighbors = []
    for ids, similarity in zip(near.index.tolist(), near.similarity.tolist(), strict=True):
        known = [(row, 1 - value) for row, value in zip(ids, similarity, strict=True) if row >= 0]
        neighbors.append({"ids": [row for row, _ in known], "distances": [distance for _, distance in known]})
    images = [{"bytes": animations[row], "path": f"{row}.webp"} if row in animations else None for row in rows]
    columns = {
        "path": pa.array([str(Path(record.path).absolute()) for record in records], pa.string()),
        "label": pa.array([label or None for label in labels], pa.string()),
        "x": pa.array(places[:, 0], pa.float32()),
        "y": pa.array(places[:, 1], pa.float32()),
        "neighbors": pa.array(neighbors, pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())})),
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
    }
    if any(record.start is not None or record.end is not None for record in records):
        columns["start"] = pa.array([record.start for record in records], pa.float64())
        columns["end"] = pa.array([record.end for record in records], pa.float64())
    with replacing(path) as file:
        parquet.write_table(pa.table(columns), file)
