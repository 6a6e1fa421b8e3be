"""Every analysis of a network, on a subset of the videos, on one page."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from typing_extensions import Unpack

from vidssl.apps.analysis import background as analyze_background
from vidssl.apps.analysis import gradcam as analyze_gradcam
from vidssl.apps.analysis import invariance as analyze_invariance
from vidssl.apps.analysis import robustness as analyze_robustness
from vidssl.apps.analysis import uniformity as analyze_uniformity
from vidssl.apps.analysis.page import Section, write_analysis_page
from vidssl.apps.analysis.sections import (
    TRAINED,
    UNTRAINED,
    Content,
    Evidence,
    background_content,
    classes_content,
    gradcam_content,
    invariance_content,
    numbers_content,
    order_content,
    robustness_content,
    setting,
)
from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.output_folder import check_file_names
from vidssl.base.progress import Report
from vidssl.base.randomness import generator
from vidssl.base.running_command import left_out
from vidssl.data.fingerprint import identify
from vidssl.data.recording_groups import Groups, recording_groups
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import copy_list
from vidssl.evaluation.features import KeptFeatures
from vidssl.evaluation.result_files import Results, complete, write_results
from vidssl.evaluation.statistics import FEWEST
from vidssl.jobs import test as tests
from vidssl.jobs.job import File, Model, NetworkOptions, Videos, file_of, job, path_of, read_videos
from vidssl.jobs.load_network import Subject, class_hash, device_of, load_subject
from vidssl.jobs.load_network import untrained as build_untrained
from vidssl.jobs.measurements import DrawChart, JobResults, Measurement, claim_results, format_clips, prepare

_log = logging.getLogger(__name__)
_TRAIN = 4  # times as many training videos as tested ones


@dataclass(frozen=True)
class AnalysisPart:
    """One analysis, with a folder of its own and a section of the page."""

    name: str  # of the folder
    title: str
    about: str  # the question, and how it is answered
    measurement: Callable[[Path | None], Measurement]  # made with the file of boxes
    content: Content  # what the page says of the results
    needs: str  # what results have that the page is made of
    chart: tuple[str, DrawChart] | None = None
    trains: bool = False  # uses the training videos
    boxes: bool = False  # needs the boxes
    link: tuple[str, str] | None = None  # text, and a file in the folder
    costly: bool = False  # too much for the untrained network, unless it is asked for


ANALYSIS_PARTS = (
    AnalysisPart(
        "numbers",
        "Recognition",
        "Does the network recognise the classes of the list? For each tested video the training videos with the most "
        "similar features are searched: R@1, kNN. If the network has a classifier, its own answer is shown too.",
        lambda boxes: tests.Protocols(per_video=True),
        numbers_content,
        "per_video",
        trains=True,
    ),
    AnalysisPart(
        "order",
        "Order of time",
        "Does the network notice whether a clip plays backwards? A linear classifier of the features learns from the "
        "training videos to separate clips from the same clips reversed, and is asked about the tested ones.",
        lambda boxes: tests.Protocols([{"name": "order"}], per_video=True),
        order_content,
        "per_video",
        trains=True,
    ),
    AnalysisPart(
        "classes",
        "Classes",
        "Do the features of the tested videos form a group for each class? Distances of two videos of one class are "
        "compared with those of two videos of different classes: distance within, distance between.",
        lambda boxes: analyze_uniformity.UniformityOfFeatures(per_video=True),
        classes_content,
        "without_recording",
        ("classes.png", analyze_uniformity.uniformity_chart),
    ),
    AnalysisPart(
        "invariance",
        "Invariance",
        "Does the network still see the class when the clip is changed: covered, rotated, slower …? The invariance "
        "score of the changed clips is compared with that of unchanged ones, and with what chance reaches, that of "
        "shuffled labels.",
        lambda boxes: analyze_invariance.Invariance(boxes=boxes, per_video=True),
        invariance_content,
        "shuffles",
        ("invariance.png", analyze_invariance.invariance_chart),
    ),
    AnalysisPart(
        "robustness",
        "Robustness",
        "How much is still recognised if the tested videos are corrupted: noisy, blurred, compressed, out of order? "
        "The training videos stay clean.",
        lambda boxes: analyze_robustness.Robustness(per_video=True),
        robustness_content,
        "per_video",
        ("robustness.png", analyze_robustness.robustness_chart),
        trains=True,
        link=("The corruptions as images", "examples.png"),
        costly=True,
    ),
    AnalysisPart(
        "background",
        "Background",
        "Does the network recognise the place instead of the action? The instance of each tested video is put before "
        "the background of another video, of the same class and of another class.",
        lambda boxes: analyze_background.Background(boxes=boxes, per_video=True),
        background_content,
        "per_video",
        ("background.png", analyze_background.background_chart),
        trains=True,
        boxes=True,
        link=("The videos as images", "examples.png"),
    ),
)
GRADCAM = Section(
    "gradcam",
    "Grad-CAM",
    "Where in the clip does the network look? Each map shows where it finds what makes a video similar to the most "
    "similar video, or the class that it predicts. All maps: the link below.",
)
_SHOWN = 4  # videos with maps on the page


@job
def analyze_all(
    model: Model,
    videos: Videos,
    *,
    out: File,
    train_list: Videos | None = None,
    limit: int | Literal["all"] = 64,
    boxes: File | None = None,
    untrained: Literal["quick", "all", "none"] = "quick",
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Run every analysis on some of the videos, and write one page with a verdict for each.

    Args:
        model: The network, as in `test`.
        videos: The tested videos. One clip and crop of each is measured, unless `clips` and `crops` are given.
        out: Folder for index.html and a folder of each analysis.
        train_list: Training videos, for the analyses that need them.
        limit: Tested videos, drawn at random, and four times as many training videos; or all.
        boxes: CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame.
        untrained: Measure the untrained network beside it: quick leaves out robustness, which takes most of the time;
            all; none.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        What the page is of; each analysis has results.json in its folder.
    """
    if limit != "all" and limit < 2:
        raise ConfigError(f"limit={limit} is less than 2")
    folder, where = Path(out), None if boxes is None else Path(boxes)
    lists = {"list": path_of(videos), "train_list": path_of(train_list)}
    folders = [*(part.name for part in ANALYSIS_PARTS), GRADCAM.name, "lists/test", "lists/train"]
    folders += [f"{UNTRAINED}/{part.name}" for part in ANALYSIS_PARTS]
    check_file_names(folder, [f"{name}/results.json" for name in folders])
    claim_results(folder, "analysis", lists, [file_of(model), options.get("cfg"), where])
    # The same clips in every section, so that each number is there once: one, as 95 versions of each are corrupted.
    options = {**options, "clips": options.get("clips") or 1, "crops": options.get("crops") or 1}
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options)
        beside, why = _untrained(subject, untrained)
        subject = replace(subject, extractor=KeptFeatures(subject.classify))
        count, train = None if limit == "all" else limit, None
        query = distributed.on_main(lambda: draw_videos(videos, options, count, folder / "lists" / "test"))
        if train_list is not None:
            more, of_training = None if count is None else _TRAIN * count, train_list
            train = distributed.on_main(lambda: draw_videos(of_training, options, more, folder / "lists" / "train"))
        overlap = subject.count_overlap(query, train)
        groups = distributed.on_main(lambda: recording_groups(query))
        work = _Work(folder, query, train, groups, options, where)
        sections = [
            work.section(part, subject, None if part.costly and untrained != "all" else beside)
            for part in ANALYSIS_PARTS
        ]
        sections.append(work.gradcam(subject, beside))
        results = _results(subject, query, train, sections, overlap)
        page = folder / "index.html"

        def write() -> None:
            write_results(folder, results)
            details = _details(subject, query, path_of(videos), train, path_of(train_list))
            notes = [*_notes(groups, len(query), beside, why), *_seen(overlap)]
            write_analysis_page(
                page,
                title=f"Analysis of {subject.name}",
                details=details,
                sections=sections,
                notes=notes,
                left_out=[*left_out().values()],
            )

        distributed.on_main(write)
    found = JobResults(results)
    found.text = "\n".join(f"{section.title}: {section.says}" for section in sections)
    found.file = page
    return found


def _untrained(subject: Subject, wanted: str) -> tuple[Subject | None, str]:
    """Return the untrained network, or why there is none."""
    if wanted == "none":
        return None, "it was not asked for"
    try:
        beside = build_untrained(subject)
    except ConfigError as error:
        return None, str(error)
    return replace(beside, extractor=KeptFeatures(None)), ""


def draw_videos(videos: Videos, options: NetworkOptions, count: int | None, out: Path) -> VideoList:
    """Draw videos of a list at random, the same each time, and write them as a list; None: all of them.

    They are drawn in pairs of a class, as analyses compare videos of a class.
    """
    listed = read_videos(videos, options)
    order, seen, place = generator(0).permutation(len(listed)).tolist(), Counter[int](), dict[int, int]()
    rank = {}
    for row in order:
        label = int(listed.labels[row])
        rank[row] = seen[label] // 2, place.setdefault(label, len(place))
        seen[label] += 1
    drawn = {*sorted(order, key=rank.__getitem__)[:count]}
    names = [text if n in drawn else None for n, text in enumerate(listed.names)]
    return read_list(copy_list(listed, out, listed.root, names), None, options.get("allow_external", False))


@dataclass(frozen=True)
class _Work:
    """What all sections are made of."""

    folder: Path
    query: VideoList
    train: VideoList | None
    groups: Groups
    options: NetworkOptions
    boxes: Path | None

    def section(self, part: AnalysisPart, subject: Subject, beside: Subject | None) -> Section:
        """Run one analysis; an error that the user could fix becomes the reason why it is left out."""
        section = Section(part.name, part.title, part.about)
        if part.boxes and self.boxes is None:
            return replace(section, reason="it needs boxes=FILE")
        try:
            results = self._measure(part, subject, self.folder / part.name)
            found = {subject.name: results}
            other, notes = None, []
            if beside is not None:
                try:
                    other = self._measure(part, beside, self.folder / UNTRAINED / part.name)
                    found[UNTRAINED] = other
                except (ConfigError, DataError) as error:
                    notes.append(f"The untrained network is not measured: {error}.")
            elif part.costly:
                notes.append(
                    "The untrained network takes as long again: vidssl analyze all --untrained all measures it."
                )
            if part.chart is not None:
                name, draw = part.chart
                distributed.on_main(lambda: write_whole(self.folder / part.name / name, draw(found)))
            content = part.content(Evidence(results, other, self.groups, self.query.labels))
        except (ConfigError, DataError) as error:
            return _left_out(section, error)
        links = [] if part.link is None else [(part.link[0], f"{part.name}/{part.link[1]}")]
        content = {**content, "notes": [*content["notes"], *notes], "setting": setting(results)}
        return replace(section, **content, links=links)

    def _measure(self, part: AnalysisPart, subject: Subject, out: Path) -> Results:
        """Return the results of one network; existing ones that lack what the page needs are measured again."""
        measurement = part.measurement(self.boxes)
        measurement.options(self.options)  # an error if it does not measure such clips
        used = self.train if part.trains else None
        lists = {"list": self.query.path, "train_list": None if used is None else used.path}
        claim_results(out, measurement.kind, lists, [Path(subject.name), *measurement.files()])
        prepared = prepare(measurement, subject, self.query, used)
        results = prepared.measure(out)
        if part.needs not in results:
            results = prepared.measure(out, reuse=False)
        return {**results, "curve": [analyze_uniformity.point(results)]} if part.name == "classes" else results

    def gradcam(self, subject: Subject, beside: Subject | None) -> Section:
        """Draw the maps of both networks."""
        subjects = {"network": subject} if beside is None else {TRAINED: subject, UNTRAINED: beside}
        try:
            drawn = analyze_gradcam.draw_maps(subjects, self.query, self.folder / GRADCAM.name, self.boxes)
        except (ConfigError, DataError) as error:
            return _left_out(GRADCAM, error)
        other = {name: results for name, results in drawn.found.items() if name.startswith(UNTRAINED)}
        found = {name: results for name, results in drawn.found.items() if name not in other}
        content = gradcam_content(found, other, self.groups, self.query)
        links = [("All maps, playing", f"{GRADCAM.name}/index.html")]
        first = setting(next(iter(found.values())))
        return replace(GRADCAM, **content, setting=first, links=links, maps=drawn.rows[:_SHOWN])


def _left_out(section: Section, error: Exception) -> Section:
    _log.warning("%s is left out: %s", section.name, error)
    return replace(section, reason=str(error))


def _notes(groups: Groups, videos: int, beside: Subject | None, why: str) -> list[str]:
    """What holds for all sections."""
    notes = [
        f"Intervals are 95 % intervals for this network on new recordings; the {videos} videos are of "
        f"{int(groups.number.max()) + 1} recordings, by {groups.how}. Numbers without one have no interval, or "
        f"there are fewer than {FEWEST} recordings.",
        "Filled: the network. Ring: the untrained network, with random weights of the run's seed and the same clips."
        if beside is not None
        else f"The untrained network is not beside it: {why}.",
    ]
    return notes


def _seen(overlap: Tree) -> list[str]:
    """What of the tested videos the network was trained on."""
    training = overlap["training"] or {}
    if training.get("videos"):
        return [f"The network was trained on {training['videos']} of the tested videos: its numbers are too high."]
    if training.get("group_videos"):
        count = training["group_videos"]
        return [f"The network was trained on other videos of the recordings of {count} tested videos."]
    return [] if "not_checked" not in training else ["Which of the tested videos it was trained on is not known."]


def _results(
    subject: Subject, query: VideoList, train: VideoList | None, sections: list[Section], overlap: Tree
) -> Results:
    """What `results.json` beside the page states; each analysis has its own."""
    content = {
        "num_videos": len(query),
        "left_out": {section.name: section.reason for section in sections if section.reason},
        "verdicts": {section.name: section.verdict for section in sections if section.verdict},
        "list": str(query.path),
        "train_list": None if train is None else str(train.path),
        **subject.describe(),
    }
    request = subject.request(
        command="analyze all",
        list=query.fingerprint,
        classes=class_hash(query),
        data=distributed.on_main(lambda: identify(query)),
        train_list=None if train is None else train.fingerprint,
        train_data=None if train is None else distributed.on_main(lambda: identify(train)),
    )
    gallery = None if train is None else train.fingerprint
    return complete(content, request=request, overlap=overlap, query=query.fingerprint, gallery=gallery)


def _details(
    subject: Subject, query: VideoList, videos: Path | None, train: VideoList | None, train_list: Path | None
) -> list[tuple[str, str]]:
    """What stands at the head of the page."""
    found = [("Videos", f"n = {len(query)} of {videos}")]
    if train is not None:
        found.append(("Training videos", f"{len(train)} of {train_list}"))
    step, test = subject.origin.get("step"), subject.test
    clips = f"{format_clips(dict(test))}, {test.clip.frames} frames each"
    name = "a module" if subject.run is None else subject.run.backbone.name
    found += [("Backbone", f"{name}, {subject.encoder.dim} features"), ("Clips", clips)]
    return found + ([("Step", f"{step:,}")] if step is not None else [])
