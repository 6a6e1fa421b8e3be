"""A page with a zoomable map of features in two dimensions, with the videos."""

import logging
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from typing_extensions import Unpack

from vidssl import distributed
from vidssl.analysis import layout_2d as layouts
from vidssl.analysis.layout_2d import UMAP_NEEDS, check_layout, has_umap, kept_neighbours
from vidssl.api.extract import extract
from vidssl.api.format_results import claim_results, format_count
from vidssl.api.job_arguments import File, Model, Natural, NetworkOptions, Videos, file_of, job, path_of, read_videos
from vidssl.api.map_columns import read_columns
from vidssl.api.map_parquet import FILE, animation, check_pyarrow, write_parquet
from vidssl.api.map_suspects import find_suspects
from vidssl.api.measure_networks import JobResults
from vidssl.atomic import file_hash
from vidssl.data.preview_frames import middle_frames
from vidssl.data.video_list import VideoList
from vidssl.data.write_lists import check_beside, check_name, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.feature_folder import FeatureFolder, read_folder
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.search import nearest
from vidssl.evaluation.suspects import K, own_rows
from vidssl.left_out import leave_out
from vidssl.output_folder import check_names
from vidssl.progress import Report, progress
from vidssl.viz.map_page import THUMBNAIL, classes_column, write_map_page
from vidssl.viz.pages import Preview, preview

_log = logging.getLogger(__name__)
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
        check_names(folder, ["features/features.npy"])
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
    place = None if root is None else Path(root)
    found = JobResults(draw_map(Path(features), folder, layout, values, thumbnails, seed, place, to == "parquet"))
    found.text, found.file = "\n".join(summary(found)), folder / "index.html"
    return found


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
    near = nearest(folder.features.x, folder.features.x, K, own_rows(count))
    class_kind, labels = _class_names(videos)
    found = find_suspects(videos, folder.features.x, near)
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
        "suspects": found.results(videos.names),
        "columns": [each.name for each in added],
        "columns_matched": matched,
        "missing": [{"path": path, "reason": text} for path, text in folder.features.missing],
        "features": str(features),
    }
    drawn = {"layout": name, "seed": seed, "thumbnails": thumbnails, "columns": columns and file_hash(columns)}
    request = {**folder.request, "command": "map", "map": drawn}
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
        suspects=found.sections(videos.names),
        details=[("Folder", str(videos.root)), ("Network", folder.features.made_by["network"]), *_details(results)],
        left_out=[reason for _, reason in folder.features.missing],
    )
    if parquet:
        write_parquet(out / FILE, videos, labels, places, near, animations)
    existing_results(out, request, reuse=False)
    write_results(out, results)
    return results


def _choose(wanted: str, count: int) -> tuple[str, str]:
    """Choose the layout: its name, and why `auto` is this one."""
    if wanted != "auto":
        return wanted, ""
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
    made, animations, missing = {}, {}, {}
    for row in progress(rows, title="thumbnails", unit="video", leave=False):
        try:
            middle = middle_frames(videos.records[row], fps)
            made[row] = preview(middle, width, height, frames, quality)
            if animated:
                animations[row] = animation(middle)
        except DataError as error:
            missing[videos.names[row]] = str(error)
    if missing:
        first = next(iter(missing.values()))
        _log.warning("%d videos have no thumbnail as they cannot be decoded, the first: %s", len(missing), first)
    return made, animations, missing


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


def summary(results: Results) -> list[str]:
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
