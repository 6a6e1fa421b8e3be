"""Where networks look, in space and time: Grad-CAM as numbers, overlays and a page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import isnan
from pathlib import Path, PurePath
from statistics import mean
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Unpack

from vidssl.apps.analysis import verdicts
from vidssl.apps.analysis.evidence import UNTRAINED, Evidence
from vidssl.apps.analysis.page import page_of
from vidssl.apps.analysis.verdicts import AnalysisVerdict, ScoreSample
from vidssl.base import distributed
from vidssl.base.atomic import file_hash, write_whole
from vidssl.base.command_line_and_notices import left_out
from vidssl.base.config import Tree, build
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import Report
from vidssl.base.types import Count, Features, Frames, Natural
from vidssl.data.find_same_videos import own_rows
from vidssl.data.read_instance_boxes import InstanceBoxes, read_instance_boxes
from vidssl.data.video_list import VideoList
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.search import nearest
from vidssl.jobs.grad_cam import (
    ClipMap,
    box_masks,
    class_maps,
    coarse,
    layers_of_maps,
    mass_inside,
    one_clip,
    pair_maps,
    randomized,
    rank_correlation,
    stages,
)
from vidssl.jobs.job import File, Model, NetworkOptions, Videos, file_of, job, models, path_of, read_videos
from vidssl.jobs.load_network import Subject, device_of, load_subject
from vidssl.jobs.measurement_runner import JobResults, Measurement, claim_results, list_missing, name_networks
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.two_streams import TwoStreams
from vidssl.page.grad_cam_page import CamCell, CamRow, draw_heat, side_by_side
from vidssl.page.previews import preview
from vidssl.page.section import Point, Quantity, Section, section_text
from vidssl.tracking.overlay import enlarged
from vidssl.video.write import write_mp4

_RATE = 8.0  # frames per second of the overlays: slow, so that each frame is seen


GRADCAM = Section(
    "gradcam",
    "Grad-CAM",
    "Where in the clip does the network look? Each map shows where it finds what makes a video similar to the most "
    "similar video, or the class that it predicts.",
)


@dataclass(frozen=True)
class Explained:
    """The maps of one video, or of one and its nearest neighbour."""

    clip: ClipMap
    number: float  # probability of the class, or similarity of the neighbour
    label: int = -1  # the class
    neighbour: int = -1  # row of the gallery
    neighbour_clip: ClipMap | None = None  # the neighbour's

    @property
    def overlays(self) -> list[Frames]:
        """The clips with their maps over them."""
        clips = (self.clip, self.neighbour_clip)
        return [draw_heat(clip.frames, clip.map) for clip in clips if clip is not None]


class ExplainedNetwork(NamedTuple):
    """A network on the page, of one with streams a stream."""

    results: Results
    explained: Mapping[int, Explained]  # the videos that are drawn, by their rows
    folder: str  # relative to the page


def _page_rows(
    videos: VideoList, searched: VideoList, rows: Sequence[int], networks: Mapping[str, ExplainedNetwork]
) -> list[CamRow]:
    """Return the rows of the page, on which the overlays of all networks are side by side.

    `searched` is the list of the neighbours, `rows` are those of the videos.
    """
    page_rows = []
    for row in rows:
        if names := [name for name, network in networks.items() if row in network.explained]:
            video, label = networks[names[0]].explained[row], videos.records[row].label
            cells = tuple(_cell(videos, searched, row, name, networks[name]) for name in names)
            class_name = videos.class_name(label) if label >= 0 else ""
            page_rows.append(CamRow(preview(video.clip.frames), videos.names[row], class_name, cells))
    return page_rows


def _cell(videos: VideoList, searched: VideoList, row: int, name: str, network: ExplainedNetwork) -> CamCell:
    """Describe what a network sees in a video."""
    video, captions = network.explained[row], ["this video"]
    if video.neighbour_clip is None:
        lines = [f"predicted: {videos.class_name(video.label)}, {100 * video.number:.0f} %"]
    else:
        label, file = searched.records[video.neighbour].label, PurePath(searched.names[video.neighbour]).name
        captions.append(f"most similar: {f'{searched.class_name(label)}, ' if label >= 0 else ''}{file}")
        lines = [f"similarity {video.number:.3f}"]
    if mass := network.results.get("mass_of_video", {}).get(videos.names[row]):
        lines.append(f"{100 * mass[0]:.0f} % of the heat in the box, which covers {100 * mass[1]:.0f} %")
    if not (video.clip.map.any() and (video.neighbour_clip is None or video.neighbour_clip.map.any())):
        lines.append("No heat: no place of the clip raises the score at this layer.")
    previews = tuple(zip(captions, map(preview, video.overlays), strict=True))
    return CamCell(name, tuple(lines), previews, str(PurePath(network.folder, "overlays", f"{row:05d}.mp4")))


def gradcam_section(
    networks: Mapping[str, Results], rows: Sequence[CamRow], videos: VideoList, recordings: NDArray[np.int64]
) -> Section:
    """Whether the heat lies in the boxes; the verdict needs the recordings of the videos."""
    place = {name: row for row, name in enumerate(videos.names)}
    measured = {}
    for network, results in networks.items():
        masses = results.get("mass_of_video", {})
        inside, area = zip(*masses.values(), strict=True) if masses else ((), ())
        per_video = {"rows": [place[name] for name in masses], "mass_in_box": inside, "box_area": area}
        measured[network] = {**results, "per_video": per_video if masses else {}}
    evidence = Evidence(measured, recordings, videos.labels)
    keys = {"heat in the boxes": "mass_in_box", "area of the boxes": "box_area", "limit of the cells": "mass_limit"}
    correlations = {
        stage: {
            network: Point(of["randomized"][stage]) for network, of in networks.items() if stage in of["randomized"]
        }
        for stage in dict.fromkeys(stage for of in networks.values() for stage in of.get("randomized", ()))
    }
    quantities = [
        evidence.quantity("Heat in the boxes", keys),
        Quantity("Rank correlation with maps of untrained stages", correlations, percent=False, digits=2, drawn=False),
    ]
    if len({of["target"] for of in networks.values()}) > 1:  # maps of a class and of a similarity are not subtracted
        quantities = [replace(quantity, differences={}) for quantity in quantities]
    empty, maps = (sum(of[key] for of in networks.values()) for key in ("zero_maps", "num_videos"))
    notes = [
        f"{name}: maps of {of['layer']}, {' x '.join(map(str, of['cells']))} cells, for the {of['target']}."
        for name, of in networks.items()
    ]
    notes += [f"{empty} of {maps} maps have no heat; they are left out of the numbers."] if empty else []
    notes += ["Untrained stages: from the last to the one named."] if correlations else []
    verdict = _verdict(evidence, maps, empty) if len(recordings) else None
    return evidence.section(GRADCAM, quantities, verdict, notes, maps=tuple(rows))


def _verdict(evidence: Evidence, maps: int, empty: int) -> AnalysisVerdict:
    """What is said of the first network, beside the first untrained one."""
    (name, first), *others = evidence.networks.items()
    if not first["per_video"]:
        return verdicts.without_boxes(maps, empty)
    alike = {network: of for network, of in others if network.startswith(UNTRAINED) and of["target"] == first["target"]}
    pair = replace(evidence, networks={name: first, **dict([*alike.items()][:1])})
    gap, untrained = pair.gap("mass_in_box", "box_area"), pair.beside("mass_in_box")
    sample = ScoreSample(len(first["per_video"]["rows"]), pair.sample.recordings)
    verdict = verdicts.attention(sample, first["mass_in_box"], first["box_area"], gap, untrained)
    trained = [network for network in evidence.networks if not network.startswith(UNTRAINED)]
    return verdict if len(trained) == 1 else verdict._replace(verdict=f"{name}: {verdict.verdict}")


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
        out: Folder for results.json, overlays and index.html.
        target: The class that the classifier predicts, or the similarity to the nearest video (default: class, if there
            is a classifier).
        gallery: List in which the nearest videos are searched (default: the videos themselves).
        boxes: CSV file path,frame,x1,y1,x2,y2: measure the mass of the maps in these boxes.
        limit: Videos measured, drawn at random.
        overlays: The first of them are drawn.
        seed: Seed of the draw.
        randomize: Also replace the weights by untrained ones, from the last stage to the first, and compare the maps.
        progress: As of `test`.
        options: See `NetworkOptions`; there is one clip per video.

    Returns:
        The results of each network, by its name; of one with streams, of each stream.
    """
    if option := next((name for name in _OTHER_CLIPS if options.get(name) is not None), None):
        raise ConfigError(f"{option}={options[option]}: maps are of one clip, in float32; leave it out")  # type: ignore[literal-required]
    layer = options.pop("layer", None)  # of the maps, not of the features
    folder, several = Path(out), models(model)
    box_file = None if boxes is None else Path(boxes)
    lists = {"list": path_of(videos), "gallery": path_of(gallery)}
    claim_results(folder, "gradcam", lists, [*map(file_of, several), options.get("cfg"), box_file])
    with distributed.joined(device_of(several[0], options)):
        query = read_videos(videos, options)
        searched = query if gallery is None else read_videos(gallery, options)
        rows = generator(seed).permutation(len(query))[:limit].tolist()
        work = GradCamJob(target, gallery is not None, box_file, limit, overlays, seed, randomize, rows)
        subjects = (
            (name, load_subject(network, options, shared_config=len(several) > 1), network_folder or folder)
            for name, network, network_folder in name_networks(several, folder)
        )
        networks, page_rows = explain_networks(work, subjects, query, searched, folder, layer)
    report = JobResults(networks)
    section = gradcam_section(networks, page_rows, query, np.empty(0, np.int64))
    report.text, report.file = section_text(section), folder / "index.html"
    return report


def explain_networks(
    work: "GradCamJob",
    subjects: Iterable[tuple[str, Subject, Path]],
    videos: VideoList,
    searched: VideoList,
    out: Path,
    layer: str | None = None,
) -> tuple[dict[str, Results], list[CamRow]]:
    """Explain networks, each with its name and folder, and write the page.

    Returns the results, by network, of one with streams by stream, and the rows of the page.
    """
    networks = {}
    for name, subject, folder in subjects:
        explained = explain_layers(work, one_clip(subject).skipping(), videos, searched, folder, layer)
        for stream, (results, shown) in explained.items():
            stream_folder = str((folder / stream).relative_to(out))
            networks[f"{name} {stream}".rstrip()] = ExplainedNetwork(results, shown, stream_folder)
    of_networks = {name: network.results for name, network in networks.items()}

    def write_page() -> list[CamRow]:
        page_rows = _page_rows(videos, searched, work.rows, networks)
        section = gradcam_section(of_networks, page_rows, videos, np.empty(0, np.int64))
        write_whole(out / "index.html", page_of(section, of_networks))
        return page_rows

    return of_networks, distributed.on_main(write_page)


def explain_layers(
    work: "GradCamJob", subject: Subject, videos: VideoList, searched: VideoList, out: Path, layer: str | None
) -> dict[str, tuple[Results, dict[int, Explained]]]:
    """Measure a layer of a network, of one with streams a layer of each: results and drawn videos, by stream."""
    neighbours = cache(partial(_nearest_videos, subject, videos, searched, work.rows))  # the same for all layers
    layers, measured = layers_of_maps(subject, layer), {}
    for name in layers:  # all of them before the first is measured: an error comes before the long work
        stream = name.partition(".")[0] if len(layers) > 1 else ""
        read = [subject.origin["path"], work.boxes]
        distributed.together(partial(claim_results, out / stream, "gradcam", {"list": videos.path}, read))
        measured[stream] = replace(work, layer=name, nearest=neighbours).of(subject, videos, searched)
    return {stream: (maps.results(out / stream, reuse=False), maps.shown) for stream, maps in measured.items()}


@dataclass
class GradCamJob(Measurement):
    """The maps of one layer of a network; `train` is the list in which the nearest videos are searched."""

    kind: ClassVar[str] = "gradcam"
    command: ClassVar[str] = "analyze gradcam"
    target: Literal["class", "similarity"] | None = None  # None: class, if the network has a classifier
    has_gallery: bool = False  # the nearest videos are searched in another list
    boxes: Path | None = None  # as in `read_instance_boxes`
    limit: int = 64  # videos
    overlays: int = 8  # the first of them are drawn
    seed: int = 0
    randomize: bool = False  # also measure the maps of networks whose stages are replaced by untrained ones
    rows: Sequence[int] = ()  # of the list
    layer: str = ""
    nearest: Callable[[], Mapping[int, int]] = dict  # returns the row of the nearest video of each of them
    shown: dict[int, Explained] = field(default_factory=dict, init=False)  # the videos whose overlays are drawn

    def needs_labels(self) -> bool:
        """Maps are drawn of all videos."""
        return False

    def check(self) -> Tree:
        """Choose what is explained."""
        target = self.target or ("similarity" if self.subject.logits is None else "class")
        if target == "class" and self.has_gallery:
            raise ConfigError('a gallery is for target="similarity": leave it out')
        self.target, self.train = target, self.train if target == "similarity" else None
        self.instances = None if self.boxes is None else read_instance_boxes(self.boxes, self.query)
        if self.randomize:
            self.subject.require_run("randomize=True")
            stages(_of_map(self.subject.test.network(self.subject.backbone), self.layer))
        maps = {key: getattr(self, key) for key in ("target", "layer", "seed")}
        maps |= {"videos": self.limit, "randomize": self.randomize}
        return {"boxes": None if self.boxes is None else file_hash(self.boxes), "maps": maps}

    def measure(self) -> Results:
        """Compute the maps, on the main process, and their numbers."""
        gallery, videos = self.train, self.query
        self.neighbours = None if gallery is None else self.nearest()
        if not distributed.is_main():
            return {}
        explained = dict(self._explain(self.rows))
        if not explained:
            raise DataError(f"none of the {len(self.rows)} videos drawn from {videos.path} can be read")
        shown = [row for row in self.rows if row in explained][: self.overlays]
        self.shown.update({row: explained[row] for row in shown})
        missing, reasons = [row for row in self.rows if row not in explained], left_out()
        results: Results = {
            "target": self.target,
            "layer": self.layer,
            "cells": next(iter(explained.values())).clip.cells,
            "num_videos": len(explained),
            "zero_maps": sum(not video.clip.map.any() for video in explained.values()),
            **(self._mass(explained, self.instances) if self.instances is not None else {}),
            "videos": [self._describe(row, video) for row, video in explained.items()],
            "missing": list_missing((videos.names[row], reasons.get(videos.records[row].path, "")) for row in missing),
            "gallery": None if gallery is None else str(gallery.path),
            "boxes": None if self.boxes is None else str(self.boxes),
            "seed": self.seed,
        }
        if self.randomize:
            results["randomized"] = self._randomize(explained)
        return results

    def write(self, out: Path) -> None:
        """Write the clips beside their overlays."""
        for row, video in self.shown.items():
            clips = [clip.frames for clip in (video.clip, video.neighbour_clip) if clip is not None]
            frames = [part for pair in zip(clips, video.overlays, strict=True) for part in pair]
            write_mp4(out / "overlays" / f"{row:05d}.mp4", enlarged(side_by_side(frames)), _RATE)

    def _explain(
        self, rows: Sequence[int], classes: Mapping[int, int] | None = None
    ) -> Iterator[tuple[int, Explained]]:
        """Yield rows of the list and their maps; without `classes` they are for the predicted ones."""
        neighbours, gallery = self.neighbours, self.train
        if neighbours is None or gallery is None:
            targets = None if classes is None else {n: classes[row] for n, row in enumerate(rows)}
            for n, clip, label, probability in class_maps(self.subject, self.query.rows(rows), self.layer, targets):
                yield rows[n], Explained(clip, probability, label)
            return
        rows = [row for row in rows if row in neighbours]
        videos, nearest_videos = self.query.rows(rows), gallery.rows([neighbours[row] for row in rows])
        for n, clip, neighbour_clip, similarity in pair_maps(self.subject, videos, nearest_videos, self.layer):
            yield rows[n], Explained(clip, similarity, neighbour=neighbours[rows[n]], neighbour_clip=neighbour_clip)

    def _mass(self, explained: Mapping[int, Explained], boxes: Mapping[str, InstanceBoxes]) -> Results:
        """Measure the mass inside of the boxes, their area, and the mass that the boxes would have as maps."""
        rows = list(explained)
        masks = {rows[n]: mask for n, mask in box_masks(self.subject, self.query.rows(rows), boxes)}
        inside = {row: mass_inside(explained[row].clip.map, mask) for row, mask in masks.items()}
        measured = {row: pair for row, pair in inside.items() if not any(map(isnan, pair))}
        limits = [mass_inside(coarse(masks[row], explained[row].clip.cells), masks[row])[0] for row in measured]
        if not measured:
            raise ConfigError("no drawn video has both a map that is not zero and a box inside of its clip: draw more")
        return {
            "mass_in_box": mean(mass for mass, _ in measured.values()),
            "box_area": mean(area for _, area in measured.values()),
            "mass_limit": mean(limits),
            "num_boxed": len(measured),
            "mass_of_video": {self.query.names[row]: pair for row, pair in measured.items()},
        }

    def _describe(self, row: int, video: Explained) -> dict[str, Any]:
        """Describe what the maps of a video are for."""
        description = {"path": self.query.names[row], "class": self.query.class_name(self.query.records[row].label)}
        if self.train is None:
            return {**description, "predicted": self.query.class_name(video.label), "probability": video.number}
        return {**description, "neighbour": self.train.names[video.neighbour], "similarity": video.number}

    def _randomize(self, explained: Mapping[int, Explained]) -> dict[str, float]:
        """Measure the mean rank correlation with maps of networks of ever fewer trained stages; the last has none."""
        subject, rows = self.subject, list(explained)
        classes = {row: video.label for row, video in explained.items()}
        run = subject.require_run("randomize=True")
        torch.manual_seed(run.seed + 1)  # not that of the run, whose weights would be those it started from
        untrained = subject.test.network(build(BACKBONES, run.backbone)).to(subject.device)
        state = {name: value.clone() for name, value in subject.backbone.state_dict().items()}
        correlation = {}
        network = _of_map(subject.test.network(subject.backbone), self.layer)
        for stage in randomized(network, _of_map(untrained, self.layer)):
            changed = dict(self._explain(rows, classes))
            maps = [(explained[row].clip.map[None], video.clip.map[None]) for row, video in changed.items()]
            correlation[stage] = mean(rank_correlation(a, b).item() for a, b in maps)
        subject.backbone.load_state_dict(state)
        return correlation


def _nearest_videos(subject: Subject, videos: VideoList, gallery: VideoList, rows: Sequence[int]) -> dict[int, int]:
    """Return the row of the nearest video of the gallery, by row of the list; a video is not its own neighbour."""
    searched = subject.extract(gallery)
    query = _selected(searched, rows) if gallery is videos else subject.extract(videos.rows(rows))
    read = videos.rows([rows[n] for n in query.index.tolist()])
    near = nearest(query.x, searched.x, 1, own_rows(gallery.rows(searched.index.tolist()), read))
    hits = zip(query.index.tolist(), near.index[:, 0].tolist(), near.similarity[:, 0].tolist(), strict=True)
    return {rows[q]: int(searched.index[g]) for q, g, similarity in hits if similarity > float("-inf")}


def _selected(features: Features, rows: Sequence[int]) -> Features:
    """Select rows of a list, numbered by their places in `rows`; those that could not be read are left out."""
    places = {row: n for n, row in enumerate(features.index.tolist())}
    kept = [n for n, row in enumerate(rows) if row in places]
    selected = [places[rows[n]] for n in kept]
    return Features(features.x[selected], features.label[selected], torch.tensor(kept, dtype=torch.int64))


def _of_map(network: Backbone, layer: str) -> Backbone:
    """Return the network that a layer is of: of one with streams, a stream."""
    stream = layer.removeprefix("encoders.").partition(".")[0]
    return network.stream(stream) if isinstance(network, TwoStreams) else network
