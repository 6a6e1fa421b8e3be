"""Every analysis of a network, on a subset of the videos, on one page."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import Unpack

from vidssl.apps.analysis import background, gradcam, invariance, robustness, verdicts
from vidssl.apps.analysis import uniformity_and_class_distances as uniformity
from vidssl.apps.analysis.evidence import MEASURES, TRAINED, UNTRAINED, Evidence
from vidssl.apps.analysis.page import analysis_page
from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.command_line_and_notices import left_out
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError, PeerError, VidsslError
from vidssl.base.keyed_generators import generator
from vidssl.base.output_folder import check_file_names
from vidssl.base.progress import Report
from vidssl.data.recordings_and_class_folders import recording_groups
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import copy_list
from vidssl.evaluation.features import KeptFeatures
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.statistics import FEWEST
from vidssl.jobs import test as tests
from vidssl.jobs.job import File, Model, NetworkOptions, Videos, file_of, job, path_of, read_videos
from vidssl.jobs.load_network import Subject, device_of, load_subject
from vidssl.jobs.load_network import untrained as build_untrained
from vidssl.jobs.measurement_runner import JobResults, Measurement, claim_results, format_clips
from vidssl.page.section import Point, Quantity, Section

_log = logging.getLogger(__name__)
_TRAIN = 4  # times as many training videos as tested ones


@dataclass(frozen=True)
class AnalysisPart:
    """One analysis, with a folder of its own and a section of the page."""

    header: Section
    measurement: Measurement
    section: Callable[[Evidence], Section]
    needs: str = "per_video"  # what results have that the section is made of
    trains: bool = False  # uses the training videos
    boxes: bool = False  # needs the boxes
    examples: str | None = None  # text of the link to examples.png, if it writes one
    costly: bool = False  # too much for the untrained network, unless it is asked for


NUMBERS = Section(
    "numbers",
    "Recognition",
    "Does the network recognise the classes of the list? For each tested video the training videos with the most "
    "similar features are searched: R@1, kNN. If the network has a classifier, its own answer is shown too.",
)
ORDER_OF_TIME = Section(
    "order",
    "Order of time",
    "Does the network notice whether a clip plays backwards? A linear classifier of the features learns from the "
    "training videos to separate clips from the same clips reversed, and is asked about the tested ones.",
)


def numbers_section(evidence: Evidence) -> Section:
    """What retrieval, kNN and the classifier say."""
    results, key, levels = evidence.first, evidence.primary, dict(evidence.levels)
    if key is None:
        text = "Nothing is judged: whether classes are recognised is measured with labels."
        return evidence.section(NUMBERS, [], verdicts.AnalysisVerdict(text, open=True))
    score, of_classes = evidence.score(key), levels.pop("majority_mean_class", None)
    quantities = [evidence.quantity("Right videos", {name: key for key, name in evidence.measures.items()}, levels)]
    if score.exact and not math.isclose(score.level, levels["majority"]):
        measured = [network for network in evidence.networks if evidence.values(key, network) is not None]
        means = {network: Point(*evidence.score(key, network).right[:3]) for network in measured}
        rows = {f"{MEASURES[key]}, mean of classes": means}
        quantities.append(Quantity("Mean over classes", rows, {"1 / classes": score.level}))
    ranks = {name: name for name in results if name.startswith("R@") and name != "R@1"}
    of_class = {"kNN, mean of classes": "knn_mean_class", "classifier, mean of classes": "mean_class"}
    reference = {} if of_classes is None else {"1 / classes": of_classes}
    quantities += [
        evidence.quantity("Mean of the accuracies of classes", of_class, reference, drawn=False),
        evidence.quantity("A video of the class among the nearest", ranks, drawn=False),
        evidence.quantity("Calibration error", {"ECE": "ece"}, drawn=False),
    ]
    notes = [detail["note"] for detail in results["details"].values() if "note" in detail]
    verdict = verdicts.recognition(evidence.sample, score, evidence.beside(key, by_class=True))
    return evidence.section(NUMBERS, quantities, verdict, [f"The verdict is about {MEASURES[key]}.", *notes])


def order_section(evidence: Evidence) -> Section:
    """Whether clips are separated from reversed ones."""
    right, equal = evidence.estimate("order"), evidence.first["details"]["order"]["equal_videos"]
    assert right is not None
    verdict = verdicts.order(evidence.sample, right, equal, evidence.beside("order"))
    direction = evidence.quantity("Clips whose direction is recognised", {"direction": "order"}, {"guessing": 0.5})
    return evidence.section(ORDER_OF_TIME, [direction], verdict)


ANALYSIS_PARTS = (
    AnalysisPart(NUMBERS, tests.Protocols(), numbers_section, trains=True),
    AnalysisPart(ORDER_OF_TIME, tests.Protocols([{"name": "order"}]), order_section, trains=True),
    AnalysisPart(
        uniformity.CLASSES, uniformity.UniformityOfFeatures(), uniformity.classes_section, needs="without_recording"
    ),
    AnalysisPart(invariance.INVARIANCE, invariance.Invariance(), invariance.invariance_section, needs="shuffles"),
    AnalysisPart(
        robustness.ROBUSTNESS_SECTION,
        robustness.Robustness(),
        robustness.robustness_section,
        trains=True,
        examples="The corruptions as images",
        costly=True,
    ),
    AnalysisPart(
        background.BACKGROUND_SECTION,
        background.Background(),
        background.background_section,
        trains=True,
        boxes=True,
        examples="The videos as images",
    ),
)
_SHOWN = 4  # videos with maps on the page
_FIXABLE = (ConfigError, DataError)  # by other options or videos: the other analyses are shown


def _reason(error: VidsslError) -> str:
    """Return why an analysis is left out, also if it failed on another process; other errors are raised."""
    if isinstance(error, PeerError) and error.kind is not None and issubclass(error.kind, _FIXABLE):
        return error.reason
    if isinstance(error, _FIXABLE):
        return str(error)
    raise error


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
    folder, box_file = Path(out), None if boxes is None else Path(boxes)
    lists = {"list": path_of(videos), "train_list": path_of(train_list)}
    folders = [*(part.header.name for part in ANALYSIS_PARTS), gradcam.GRADCAM.name, "lists/test", "lists/train"]
    folders += [f"{UNTRAINED}/{part.header.name}" for part in ANALYSIS_PARTS]
    check_file_names(folder, [f"{name}/results.json" for name in folders])
    claim_results(folder, "analysis", lists, [file_of(model), options.get("cfg"), box_file])
    # The same clips in every section, so that each number is there once: one, as 95 versions of each are corrupted.
    options = {**options, "clips": options.get("clips") or 1, "crops": options.get("crops") or 1}
    with distributed.joined(device_of(model, options)):
        subject, train = load_subject(model, options), None
        count = None if limit == "all" else limit
        query = distributed.on_main(lambda: draw_videos(videos, options, count, folder / "lists" / "test"))
        if train_list is not None:
            more, of_training = None if count is None else _TRAIN * count, train_list
            train = distributed.on_main(lambda: draw_videos(of_training, options, more, folder / "lists" / "train"))
        analyses = AllAnalyses(folder, lists, options, untrained, box_file).of(subject, query, train)
        report = JobResults(analyses.results(folder, reuse=False))
    report.text = "\n".join(f"{section.title}: {section.says}" for section in analyses.sections)
    report.file = folder / "index.html"
    return report


def _untrained(subject: Subject, choice: str) -> tuple[Subject | None, str]:
    """Return the untrained network, or why there is none."""
    if choice == "none":
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
    all_videos = read_videos(videos, options).labelled_rows()
    order, seen, class_order = generator(0).permutation(len(all_videos)).tolist(), Counter[int](), dict[int, int]()
    rank = {}
    for row in order:
        label = int(all_videos.labels[row])
        rank[row] = seen[label] // 2, class_order.setdefault(label, len(class_order))
        seen[label] += 1
    kept = {*sorted(order, key=rank.__getitem__)[:count]}
    names = [text if n in kept else None for n, text in enumerate(all_videos.names)]
    return read_list(copy_list(all_videos, out, all_videos.root, names), None, options.get("allow_external", False))


@dataclass
class AllAnalyses(Measurement):
    """All analyses of one network, each in a folder of its own, and their page."""

    kind: ClassVar[str] = "analysis"
    command: ClassVar[str] = "analyze all"
    compares: ClassVar[bool] = False  # each analysis checks its lists
    folder: Path
    inputs: Mapping[str, Path | None]  # the lists that videos were drawn from
    given: NetworkOptions  # of the network
    untrained: str  # what is measured of the untrained network: quick, all, none
    boxes: Path | None
    sections: list[Section] = field(default_factory=list, init=False)

    def check(self) -> Tree:
        """Build the untrained network."""
        self.beside, self.why = _untrained(self.subject, self.untrained)
        self.groups = distributed.on_main(lambda: recording_groups(self.query))
        return {}

    def measure(self) -> Results:
        """Run all analyses."""
        subject = replace(self.subject, extractor=KeptFeatures(self.subject.classify))
        for part in ANALYSIS_PARTS:
            costly = part.costly and self.untrained != "all"
            self.sections.append(self._section(part, subject, None if costly else self.beside))
        self.sections.append(self._gradcam(subject))
        return {
            "num_videos": len(self.query),
            "left_out": {section.name: section.reason for section in self.sections if section.reason},
            "verdicts": {section.name: section.verdict for section in self.sections if section.verdict},
        }

    def write(self, out: Path) -> None:
        """Write the page."""
        unread, title = [*left_out().values()], f"Analysis of {self.subject.name}"
        write_whole(out / "index.html", analysis_page(title, self.sections, self._details(), self._notes(), unread))

    def _section(self, part: AnalysisPart, subject: Subject, beside: Subject | None) -> Section:
        """Run one analysis; an error that the user could fix becomes the reason why it is left out."""
        name, notes = part.header.name, []
        if part.boxes and self.boxes is None:
            return replace(part.header, reason="it needs boxes=FILE")
        try:
            networks = {TRAINED: self._measure(part, subject, self.folder / name)}
            if beside is not None:
                try:
                    networks[UNTRAINED] = self._measure(part, beside, self.folder / UNTRAINED / name)
                except VidsslError as error:
                    notes.append(f"The untrained network is not measured: {_reason(error)}.")
            elif part.costly:
                notes.append(
                    "The untrained network takes as long again: vidssl analyze all --untrained all measures it."
                )
            section = part.section(Evidence(networks, self.groups.number, self.query.labels))
        except VidsslError as error:
            return _left_out(part.header, _reason(error))
        links = [] if part.examples is None else [(part.examples, f"{name}/examples.png")]
        return replace(section, notes=[*section.notes, *notes], links=links)

    def _measure(self, part: AnalysisPart, subject: Subject, out: Path) -> Results:
        """Return the results of one network; existing ones that lack what the page needs are measured again."""
        boxes: Tree = {"boxes": self.boxes} if hasattr(part.measurement, "boxes") else {}
        measurement = replace(part.measurement, per_video=True, **boxes)
        measurement.options(self.given)  # an error if it does not measure such clips
        used = self.train if part.trains else None
        lists = {"list": self.query.path, "train_list": None if used is None else used.path}
        read = [Path(subject.name), *measurement.files()]
        distributed.together(lambda: claim_results(out, measurement.kind, lists, read))
        measured = measurement.of(subject, self.query, used)
        results = measured.results(out)
        if part.needs not in results:
            results = measured.results(out, reuse=False)
        return {**results, "curve": [uniformity.point(results)]} if part.header is uniformity.CLASSES else results

    def _gradcam(self, subject: Subject) -> Section:
        """Draw the maps of both networks."""
        header, work = gradcam.GRADCAM, gradcam.GradCamJob(boxes=self.boxes)
        out, files = self.folder / header.name, [Path(subject.name), self.boxes]
        subjects = [("network", subject, out)]
        if self.beside is not None:
            subjects = [(TRAINED, subject, out / TRAINED), (UNTRAINED, self.beside, out / UNTRAINED)]
            files.append(Path(self.beside.name))
        try:
            distributed.together(lambda: claim_results(out, "gradcam", {"list": self.query.path}, files))
            work.rows = generator(0).permutation(len(self.query))[: work.limit].tolist()
            networks, page_rows = gradcam.explain_networks(work, subjects, self.query, self.query, out)
            section = gradcam.gradcam_section(networks, page_rows[:_SHOWN], self.query, self.groups.number)
        except VidsslError as error:
            return _left_out(header, _reason(error))
        return replace(section, links=[("All maps, playing", f"{header.name}/index.html")])

    def _notes(self) -> list[str]:
        """What holds for all sections."""
        training = self.overlap["training"] or {}  # what the tested videos have in common with those of the training
        notes = [
            f"Intervals are 95 % intervals for this network on new recordings; the {len(self.query)} videos are of "
            f"{int(self.groups.number.max()) + 1} recordings: {self.groups.how}. Numbers without one have no "
            f"interval, or there are fewer than {FEWEST} recordings.",
            "Filled: the network. Ring: the untrained network, with random weights of the run's seed and the same "
            "clips."
            if self.beside is not None
            else f"The untrained network is not beside it: {self.why}.",
        ]
        if count := training.get("videos"):
            notes.append(f"The network was trained on {count} of the tested videos: its numbers are too high.")
        elif count := training.get("group_videos"):
            notes.append(f"The network was trained on other videos of the recordings of {count} tested videos.")
        elif "not_checked" in training:
            notes.append("Which of the tested videos it was trained on is not known.")
        return notes

    def _details(self) -> list[tuple[str, str]]:
        """What stands at the head of the page."""
        subject, test, step = self.subject, self.subject.test, self.subject.origin.get("step")
        details = [("Videos", f"n = {len(self.query)} of {self.inputs['list']}")]
        if self.train is not None:
            details.append(("Training videos", f"{len(self.train)} of {self.inputs['train_list']}"))
        clips = f"{format_clips(dict(test))}, {test.clip.frames} frames each"
        name = "a module" if subject.run is None else subject.run.backbone.name
        details += [("Backbone", f"{name}, {subject.encoder.dim} features"), ("Clips", clips)]
        return details + ([("Step", f"{step:,}")] if step is not None else [])


def _left_out(section: Section, reason: str) -> Section:
    _log.warning("%s is left out: %s", section.name, reason)
    return replace(section, reason=reason)
