"""Where networks look, in space and time: Grad-CAM as numbers, overlays and a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import isnan
from pathlib import Path, PurePath
from statistics import mean
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from typing_extensions import Unpack

from vidssl.base import distributed
from vidssl.base.atomic import file_hash, write_whole
from vidssl.base.config import build
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import Report
from vidssl.base.randomness import generator
from vidssl.base.running_command import left_out
from vidssl.base.types import Features
from vidssl.data.find_same_videos import own_rows
from vidssl.data.instance_boxes import InstanceBoxes, read_instance_boxes
from vidssl.data.video_list import VideoList
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.search import nearest
from vidssl.jobs.grad_cam import coarse, mass_inside, randomized, rank_correlation, stages
from vidssl.jobs.heat_maps import ClipMap, box_masks, class_maps, layers_of_maps, one_clip, pair_maps
from vidssl.jobs.job import (
    Count,
    File,
    Model,
    Natural,
    NetworkOptions,
    Videos,
    file_of,
    job,
    models,
    path_of,
    read_videos,
)
from vidssl.jobs.load_network import Subject, device_of, load_subject
from vidssl.jobs.measurements import (
    Computed,
    JobResults,
    Measurement,
    Plan,
    claim_results,
    format_count,
    format_table,
    format_tests,
    name_networks,
    prepare,
)
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.two_streams import TwoStreams
from vidssl.page.figure import png
from vidssl.page.heat_maps import CamCell, CamRow, cam_sheet, draw_heat, film_strip, side_by_side, write_cam_page
from vidssl.page.render import preview
from vidssl.tracking.overlay import enlarged
from vidssl.video.write import write_mp4

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


def write_gradcam_page(
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
        table=gradcam_table(found),
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


def gradcam_table(found: Mapping[str, Results]) -> list[list[str]]:
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


_OTHER_CLIPS = ("clips", "crops", "grid", "grid_frames", "precision")  # options that maps of one clip do not have


@job
def analyze_gradcam(
    model: Model | Sequence[Model],
    videos: Videos,
    *,
    out: File,
    target: Literal["class", "similarity"] | None = None,
    gallery: Videos | None = None,
    boxes: File | None = None,
    limit: Count = 64,
    overlays: Natural = 8,
    seed: Natural = 0,
    randomize: bool = False,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Show where networks look, in space and time: Grad-CAM of a class, or of the similarity of neighbours.

    All networks see the same videos, of each the central clip. `layer` is that of the maps, a layer or the path of a
    module (default: the last one with 4 x 4 cells or more).

    Args:
        model: One network or several, as in `test`.
        videos: The videos.
        out: Folder for results.json, overlays, index.html and gradcam.png.
        target: The class that the classifier predicts, or the similarity to the nearest video (default: class, if there
            is a classifier).
        gallery: List in which the nearest videos are searched (default: the videos themselves).
        boxes: CSV file path,frame,x1,y1,x2,y2: measure the mass of the maps in these boxes.
        limit: Videos measured, drawn at random.
        overlays: The first of them are drawn.
        seed: Seed of the draw.
        randomize: Also replace the weights by untrained ones, from the last stage to the first, and compare the maps.
        progress: As of `test`.
        options: See `NetworkOptions`; there is one clip a video.

    Returns:
        The results of each network, by its name; of one with streams, of each stream.
    """
    if other := next((name for name in _OTHER_CLIPS if options.get(name) is not None), None):
        raise ConfigError(f"{other}={options[other]}: maps are of one clip, in float32; leave it out")  # type: ignore[literal-required]
    layer = options.pop("layer", None)  # of the maps, not of the features
    folder, several = Path(out), models(model)
    where = None if boxes is None else Path(boxes)
    lists = {"list": path_of(videos), "gallery": path_of(gallery)}
    claim_results(folder, "gradcam", lists, [*map(file_of, several), options.get("cfg"), where])
    found, shown, folders = JobResults(), {}, {}
    with distributed.joined(device_of(several[0], options)):
        listed = read_videos(videos, options)
        searched = listed if gallery is None else read_videos(gallery, options)
        drawn = generator(seed).permutation(len(listed))[:limit].tolist()
        for name, one, place in name_networks(several, folder):
            assert place is not None
            subject = one_clip(load_subject(one, options, shared_config=len(several) > 1)).skipping_few()
            work = GradCamJob(target, gallery is not None, where, limit, overlays, seed, randomize, drawn)
            explained = explain_layers(work, subject, listed, searched, place, layer)
            for stream, (results, overlaid) in explained.items():
                key = f"{name} {stream}".rstrip()
                found[key], shown[key], folders[key] = results, overlaid, str((place / stream).relative_to(folder))
        distributed.on_main(lambda: write_gradcam_page(folder, listed, searched, drawn, found, shown, folders))
    found.text, found.file = gradcam_summary(found), folder / "index.html"
    return found


class DrawnMaps(NamedTuple):
    """The maps of several networks."""

    found: dict[str, Results]  # by network, of one with streams by stream
    rows: tuple[CamRow, ...]  # of the page


def draw_maps(subjects: Mapping[str, Subject], listed: VideoList, out: Path, boxes: Path | None) -> DrawnMaps:
    """Explain networks that are loaded, by their names, with the default settings, and write the page."""
    read = [Path(subject.name) for subject in subjects.values()]
    claim_results(out, "gradcam", {"list": listed.path}, [*read, boxes])
    drawn = generator(0).permutation(len(listed))[: GradCamJob.limit].tolist()
    found, shown, folders = {}, {}, {}
    for name, subject in subjects.items():
        place = out / name if len(subjects) > 1 else out
        explained = explain_layers(
            GradCamJob(boxes=boxes, drawn=drawn), one_clip(subject).skipping_few(), listed, listed, place, None
        )
        for stream, (results, overlaid) in explained.items():
            key = f"{name} {stream}".rstrip()
            found[key], shown[key], folders[key] = results, overlaid, str((place / stream).relative_to(out))
    rows = distributed.on_main(lambda: write_gradcam_page(out, listed, listed, drawn, found, shown, folders))
    return DrawnMaps(found, rows)


def explain_layers(
    work: "GradCamJob", subject: Subject, listed: VideoList, searched: VideoList, out: Path, layer: str | None
) -> dict[str, tuple[Results, dict[int, Explained]]]:
    """Measure a layer of a network, of one with streams a layer of each: results and drawn videos, by stream."""
    pairs = cache(partial(_nearest_videos, subject, listed, searched, work.drawn))  # the same for all layers
    layers, prepared = layers_of_maps(subject, layer), {}
    for each in layers:  # all of them before the first is measured: an error comes before the long work
        stream = each.partition(".")[0] if len(layers) > 1 else ""
        of_layer = GradCamJob(**{**vars(work), "layer": each, "pairs": pairs, "shown": {}})
        claim_results(out / stream, "gradcam", {"list": listed.path}, [subject.origin["path"], work.boxes])
        prepared[stream] = of_layer, prepare(of_layer, subject, listed, searched)
    return {
        stream: (measurable.measure(out / stream, reuse=False), of_layer.shown)
        for stream, (of_layer, measurable) in prepared.items()
    }


@dataclass(frozen=True)
class GradCamJob(Measurement):
    """The maps of one layer of a network."""

    kind: ClassVar[str] = "gradcam"
    command: ClassVar[str] = "analyze gradcam"
    target: Literal["class", "similarity"] | None = None  # None: class, if the network has a classifier
    has_gallery: bool = False  # the nearest videos are searched in another list
    boxes: Path | None = None  # as in `read_instance_boxes`
    limit: int = 64  # videos
    overlays: int = 8  # the first of them are drawn
    seed: int = 0
    randomize: bool = False  # also measure the maps of networks whose stages are replaced by untrained ones
    drawn: Sequence[int] = ()  # rows of the list
    layer: str = ""
    pairs: Any = None  # returns the row of the nearest video of each of them
    shown: dict[int, Explained] = field(default_factory=dict)  # is filled with the videos whose overlays are drawn

    def files(self) -> list[Path]:
        """Return the file of boxes."""
        return [] if self.boxes is None else [self.boxes]

    def plan(self, subject: Subject, query: VideoList, train: VideoList | None) -> Plan:
        """Choose what is explained; `train` is the list in which the nearest videos are searched."""
        target = self.target or ("similarity" if subject.logits is None else "class")
        if target == "class" and self.has_gallery:
            raise ConfigError('a gallery is for target="similarity": leave it out')
        boxes = None if self.boxes is None else read_instance_boxes(self.boxes, query)
        request = {
            "boxes": None if self.boxes is None else file_hash(self.boxes),
            "maps": {
                "target": target,
                "layer": self.layer,
                "seed": self.seed,
                "videos": self.limit,
                "randomize": self.randomize,
            },
        }
        if self.randomize:
            subject.require_run("randomize=True")
            stages(_of_map(subject.test.network(subject.backbone), self.layer))
        gallery = train if target == "similarity" else None
        return Plan(request, partial(self._compute, subject, query, gallery, target, boxes), gallery)

    def _compute(
        self,
        subject: Subject,
        listed: VideoList,
        gallery: VideoList | None,
        target: str,
        boxes: Mapping[str, InstanceBoxes] | None,
    ) -> Computed:
        pairs = None if gallery is None else self.pairs()
        searched = listed if gallery is None else gallery

        def measure() -> Results:
            found = dict(_explain(subject, listed, searched, self.drawn, self.layer, pairs))
            if not found:
                raise DataError(f"none of the {len(self.drawn)} videos drawn from {listed.path} can be read")
            rows, reasons = [row for row in self.drawn if row in found][: self.overlays], left_out()
            self.shown.update({row: found[row] for row in rows})
            results: Results = {
                "target": target,
                "layer": self.layer,
                "cells": next(iter(found.values())).clip.cells,
                "num_videos": len(found),
                "zero_maps": sum(not one.clip.map.any() for one in found.values()),
                **(_mass(subject, listed, found, boxes) if boxes is not None else {}),
                "videos": [_describe(listed, searched, row, one) for row, one in found.items()],
                "missing": [
                    {"path": listed.names[row], "reason": reasons.get(listed.records[row].path, "")}
                    for row in self.drawn
                    if row not in found
                ],
                "gallery": None if gallery is None else str(gallery.path),
                "boxes": None if self.boxes is None else str(self.boxes),
                "seed": self.seed,
            }
            if self.randomize:
                results["randomized"] = _randomize(subject, listed, searched, self.layer, found)
            return results

        return Computed(distributed.on_main(measure), self._write)

    def _write(self, out: Path) -> None:
        for row, one in self.shown.items():
            write_overlay(out / "overlays" / f"{row:05d}", one)


def _nearest_videos(subject: Subject, listed: VideoList, gallery: VideoList, drawn: Sequence[int]) -> dict[int, int]:
    """Return the row of the nearest video of the gallery, by row of the list; a video is not its own neighbour."""
    videos, found = listed.rows(drawn), subject.extract(gallery)
    query = _selected(found, drawn) if gallery is listed else subject.extract(videos)
    of_query = {row: n for n, row in enumerate(query.index.tolist())}
    of_gallery = {row: n for n, row in enumerate(found.index.tolist())}
    own = [
        (of_query[q], of_gallery[g]) for q, g in own_rows(gallery, videos).tolist() if q in of_query and g in of_gallery
    ]
    near = nearest(query.x, found.x, 1, torch.tensor(own, dtype=torch.int64).reshape(-1, 2))
    rows, alike = near.index[:, 0].tolist(), near.similarity[:, 0].tolist()
    return {
        drawn[q]: int(found.index[g])
        for q, g, similarity in zip(query.index.tolist(), rows, alike, strict=True)
        if similarity > float("-inf")
    }


def _selected(features: Features, drawn: Sequence[int]) -> Features:
    """Select rows of a list, numbered by their places in `drawn`; those that could not be read are left out."""
    places = {row: n for n, row in enumerate(features.index.tolist())}
    kept = [n for n, row in enumerate(drawn) if row in places]
    rows = [places[drawn[n]] for n in kept]
    return Features(features.x[rows], features.label[rows], torch.tensor(kept, dtype=torch.int64))


def _explain(
    subject: Subject,
    listed: VideoList,
    gallery: VideoList,
    drawn: Sequence[int],
    layer: str,
    pairs: Mapping[int, int] | None,
    classes: Mapping[int, int] | None = None,
) -> Iterator[tuple[int, Explained]]:
    """Yield the rows of the list and their maps: for the similarity of `pairs`, or without pairs for classes."""
    if pairs is None:
        wanted = None if classes is None else {n: classes[row] for n, row in enumerate(drawn)}
        for n, clip, label, probability in class_maps(subject, listed.rows(drawn), layer, wanted):
            yield drawn[n], Explained(clip, probability, label)
        return
    rows = [row for row in drawn if row in pairs]
    others = gallery.rows([pairs[row] for row in rows])
    for n, clip, other, similarity in pair_maps(subject, listed.rows(rows), others, layer):
        yield rows[n], Explained(clip, similarity, neighbour=pairs[rows[n]], other=other)


def _mass(
    subject: Subject, listed: VideoList, found: Mapping[int, Explained], boxes: Mapping[str, InstanceBoxes]
) -> Results:
    """Measure the mass inside of the boxes, their area, and the mass that the boxes themselves would have as maps."""
    rows = list(found)
    masks = {rows[n]: mask for n, mask in box_masks(subject, listed.rows(rows), boxes)}
    inside = {row: mass_inside(found[row].clip.map, mask) for row, mask in masks.items()}
    measured = {row: pair for row, pair in inside.items() if not any(map(isnan, pair))}
    limits = [mass_inside(coarse(masks[row], found[row].clip.cells), masks[row])[0] for row in measured]
    if not measured:
        raise ConfigError("no drawn video has both a map that is not zero and a box inside of its clip: draw more")
    return {
        "mass_in_box": mean(mass for mass, _ in measured.values()),
        "box_area": mean(area for _, area in measured.values()),
        "mass_limit": mean(limits),
        "num_boxed": len(measured),
        "mass_of_video": {listed.names[row]: pair for row, pair in measured.items()},
    }


def _describe(listed: VideoList, gallery: VideoList, row: int, one: Explained) -> dict[str, Any]:
    found = {"path": listed.names[row], "class": listed.class_name(listed.records[row].label)}
    if one.other is None:
        return {**found, "predicted": listed.class_name(one.label), "probability": one.number}
    return {**found, "neighbour": gallery.names[one.neighbour], "similarity": one.number}


def _randomize(
    subject: Subject, listed: VideoList, gallery: VideoList, layer: str, found: Mapping[int, Explained]
) -> dict[str, float]:
    """Measure the mean rank correlation with the maps of networks with ever fewer trained stages; the last has none."""
    rows = list(found)
    pairs = {row: one.neighbour for row, one in found.items()} if found[rows[0]].other else None
    classes = {row: one.label for row, one in found.items()}
    run = subject.require_run("randomize=True")
    torch.manual_seed(run.seed + 1)  # not that of the run, whose weights would be those it started from
    untrained = subject.test.network(build(BACKBONES, run.backbone)).to(subject.device)
    state = {name: value.clone() for name, value in subject.backbone.state_dict().items()}
    correlation = {}
    network = _of_map(subject.test.network(subject.backbone), layer)
    for stage in randomized(network, _of_map(untrained, layer)):
        changed = dict(_explain(subject, listed, gallery, rows, layer, pairs, classes))
        both = [(found[row].clip.map[None], one.clip.map[None]) for row, one in changed.items()]
        correlation[stage] = mean(rank_correlation(a, b).item() for a, b in both)
    subject.backbone.load_state_dict(state)
    return correlation


def _of_map(network: Backbone, layer: str) -> Backbone:
    """Return the network that a layer is of: of one with streams, a stream."""
    stream = layer.removeprefix("encoders.").partition(".")[0]
    return network.stream(stream) if isinstance(network, TwoStreams) else network


def gradcam_summary(found: Mapping[str, Results]) -> str:
    """Format the numbers of all networks as a short table."""
    first, rows = next(iter(found.values())), gradcam_table(found)
    lines = [
        f"{format_count(first['num_videos'], first['missing'])} videos; {format_tests(found)}",
        *format_table(rows, "<<<<" + ">" * (len(rows[0]) - 4)),
    ]
    lines += [f"{name.lower()}: {text}" for name, text in legend(found)]
    return "\n".join(lines)
