"""Output of `analyze gradcam`: overlays as MP4 and PNG, and the page with those of all networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from vidssl.api.format_results import format_count
from vidssl.api.gradcam_maps import ClipMap
from vidssl.atomic import write_whole
from vidssl.data.video_list import VideoList
from vidssl.evaluation.result_files import Results
from vidssl.video.write import write_mp4
from vidssl.viz.cam_page import CamCell, CamRow, write_cam_page
from vidssl.viz.figure import png
from vidssl.viz.heat_maps import cam_sheet, draw_heat, film_strip, side_by_side
from vidssl.viz.pages import preview
from vidssl.viz.track_overlay import enlarged

_RATE = 8.0  # frames per second of the overlays: slow, so that each frame is seen
_STILLS = 5  # videos of the image


@dataclass(frozen=True)
class Explained:
    """The maps of one video, or of one and its nearest neighbour."""

    clip: ClipMap
    number: float  # probability of the class, or similarity of the neighbour
    label: int = -1  # the class
    neighbour: int = -1  # row of the gallery
    other: ClipMap | None = None  # the neighbour's


def write_overlay(path: Path, one: Explained) -> None:
    """Write clips beside their overlays as MP4, and one below the other as PNG."""
    both = [clip for clip in (one.clip, one.other) if clip is not None]
    clips = [frames for clip in both for frames in (clip.frames, draw_heat(clip.frames, clip.map))]
    write_mp4(path.with_suffix(".mp4"), enlarged(side_by_side(clips)), _RATE)
    write_whole(path.with_suffix(".png"), film_strip(clips))


def write_page(
    out: Path,
    listed: VideoList,
    searched: VideoList,
    drawn: Sequence[int],
    found: Mapping[str, Results],
    shown: Mapping[str, Mapping[int, Explained]],
    folders: Mapping[str, str],
) -> tuple[CamRow, ...]:
    """Write the page on which the overlays of all networks, by their names, are side by side, and the image of some.

    `searched` is the list of the neighbours; `folders` are those of the networks, relative to the page. Returns the
    rows of the page.
    """
    rows, sheet = [], []
    for row in drawn:
        explained = {name: ones[row] for name, ones in shown.items() if row in ones}
        if not explained:
            continue
        video = next(iter(explained.values())).clip.frames
        if len(explained) == len(found):
            clips = {name: draw_heat(one.clip.frames, one.clip.map) for name, one in explained.items()}
            sheet.append({"video": video, **clips})
        cells = [_cell(listed, searched, row, name, one, found, folders[name]) for name, one in explained.items()]
        label = listed.records[row].label
        class_name = listed.class_name(label) if label >= 0 else ""
        rows.append(CamRow(preview(video), listed.names[row], class_name, tuple(cells)))
    if sheet:
        write_whole(out / "gradcam.png", png(cam_sheet(sheet[:_STILLS])))
    first = next(iter(found.values()))
    videos = format_count(first["num_videos"], first["missing"])
    write_cam_page(
        out / "index.html",
        title=f"Grad-CAM: {listed.path.parent.name}/{listed.path.stem}",
        table=table(found),
        details=[("Videos", videos), ("Drawn with seed", str(first["seed"])), *legend(found)],
        rows=rows,
        left_out=[each["reason"] or each["path"] for each in first["missing"]],
    )
    return tuple(rows)


def _cell(
    listed: VideoList,
    searched: VideoList,
    row: int,
    name: str,
    one: Explained,
    found: Mapping[str, Results],
    folder: str,
) -> CamCell:
    """Describe what a network sees in a video."""
    clips = [("this video", one.clip)]
    if one.other is not None:
        clips.append((f"most similar: {_described(searched, one.neighbour)}", one.other))
    drawn = tuple((caption, preview(draw_heat(clip.frames, clip.map))) for caption, clip in clips)
    predicted = f"predicted: {listed.class_name(one.label)}, {100 * one.number:.0f} %"
    lines = [predicted if one.other is None else f"similarity {one.number:.3f}"]
    if mass := found[name].get("mass_of_video", {}).get(listed.names[row]):
        lines.append(f"{100 * mass[0]:.0f} % of the heat in the box, which covers {100 * mass[1]:.0f} %")
    if not all(clip.map.any() for _, clip in clips):
        lines.append("No heat: no place of the clip raises the score at this layer.")
    return CamCell(name, tuple(lines), drawn, str(PurePath(folder, "overlays", f"{row:05d}.mp4")))


def _described(videos: VideoList, row: int) -> str:
    """Class and file of a video."""
    label, file = videos.records[row].label, PurePath(videos.names[row]).name
    return f"{videos.class_name(label)}, {file}" if label >= 0 else file


def table(found: Mapping[str, Results]) -> list[list[str]]:
    """Format the numbers of networks: a header, and a row for each."""
    stages = [*dict.fromkeys(stage for results in found.values() for stage in results.get("randomized", {}))]
    masses = {"mass_in_box": "mass in box (%)", "box_area": "area of box (%)", "mass_limit": "limit (%)"}
    masses = {key: title for key, title in masses.items() if any(key in results for results in found.values())}
    rows = [["", "target", "layer", "cells", *masses.values(), *(f"{stage} untrained" for stage in stages)]]
    for name, results in found.items():
        own = results.get("randomized", {})
        row = [name, results["target"], results["layer"], " x ".join(map(str, results["cells"] or ()))]
        row += [f"{100 * results[key]:.1f}" for key in masses]
        rows.append([*row, *(f"{own[stage]:.2f}" if stage in own else "–" for stage in stages)])
    return rows


def legend(found: Mapping[str, Results]) -> list[tuple[str, str]]:
    """Explain the columns of the table that need it."""
    texts = {
        "mass_limit": ("Limit", "mass in the box of the box itself, drawn with the cells of the maps"),
        "randomized": ("Untrained", "from the last stage to the one named: rank correlation with the maps as they are"),
    }
    return [text for key, text in texts.items() if any(key in results for results in found.values())]
