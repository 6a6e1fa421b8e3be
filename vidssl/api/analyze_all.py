"""Every analysis of a network, on a subset of the videos, on one page."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from typing_extensions import Unpack

from vidssl import distributed
from vidssl.api import analyze_background, analyze_gradcam, analyze_invariance, analyze_robustness, analyze_uniformity
from vidssl.api import test as tests
from vidssl.api.format_results import claim_results, format_clips
from vidssl.api.job_arguments import File, Model, NetworkOptions, Videos, file_of, job, path_of, read_videos
from vidssl.api.measure_networks import Chart, JobResults, Measurement, Table, prepare
from vidssl.api.measured_network import Subject, class_hash, device_of, load_subject
from vidssl.atomic import write_whole
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import copy_list
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import KeptFeatures
from vidssl.evaluation.result_files import Results, complete, write_results
from vidssl.keyed_generators import generator
from vidssl.left_out import left_out
from vidssl.output_folder import check_names
from vidssl.progress import Report
from vidssl.viz.pages import Section, write_report_page

_log = logging.getLogger(__name__)
_TRAIN = 4  # times as many training videos as tested ones


@dataclass(frozen=True)
class Part:
    """One analysis, with a folder of its own and a section of the page."""

    name: str  # of the folder
    title: str
    text: str  # what it measures
    measurement: Callable[[Path | None], Measurement]  # made with the file of boxes
    table: Table
    chart: tuple[str, Chart] | None = None
    trains: bool = False  # uses the training videos
    boxes: bool = False  # needs the boxes
    link: tuple[str, str] | None = None  # text, and a file in the folder


PARTS = (
    Part(
        "numbers",
        "Numbers",
        "Retrieval, kNN and uniformity of the features, and the accuracy of the network's own classifier.",
        lambda boxes: tests.Protocols(),
        tests.table,
        trains=True,
    ),
    Part(
        "order",
        "Order of time",
        "Whether a linear classifier of frozen features separates clips from the same clips reversed. Chance is 50.",
        lambda boxes: tests.Protocols([{"name": "order"}]),
        tests.table,
        trains=True,
    ),
    Part(
        "classes",
        "Classes",
        "How evenly the features cover the sphere, and mean squared distances within and between classes.",
        lambda boxes: analyze_uniformity.Uniformity(),
        analyze_uniformity.summary,
        ("classes.png", analyze_uniformity.chart),
    ),
    Part(
        "invariance",
        "Invariance",
        "Whether the units that respond to a class keep responding when the clip is transformed. 1 is chance; "
        "shuffled is what the best of many units reach by chance.",
        lambda boxes: analyze_invariance.Invariance(boxes=boxes),
        analyze_invariance.summary,
        ("invariance.png", analyze_invariance.chart),
    ),
    Part(
        "robustness",
        "Robustness",
        "Accuracy on corrupted videos. mPC is the mean over all corruptions and severities, rPC its ratio to the clean "
        "accuracy.",
        lambda boxes: analyze_robustness.Robustness(),
        analyze_robustness.summary,
        ("robustness.png", analyze_robustness.chart),
        trains=True,
        link=("Examples", "examples.png"),
    ),
    Part(
        "background",
        "Background",
        "Accuracy on videos whose instance was put before the background of another video, of the same and of another "
        "class. Shortcut: classified as the class of that background.",
        lambda boxes: analyze_background.Background(boxes=boxes),
        analyze_background.summary,
        ("background.png", analyze_background.chart),
        trains=True,
        boxes=True,
        link=("Examples", "examples.png"),
    ),
)
GRADCAM = Section(
    "gradcam",
    "Grad-CAM",
    "Where the network looks in space and time: the maps of the predicted class, or of the similarity to the most "
    "similar video.",
    is_chart=False,
    link=("Playing maps", "gradcam/index.html"),
)


@job
def analyze_all(
    model: Model,
    videos: Videos,
    *,
    out: File,
    train_list: Videos | None = None,
    limit: int | Literal["all"] = 64,
    boxes: File | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Run every analysis on some of the videos, and write one page.

    Args:
        model: The network, as in `test`.
        videos: The tested videos. One clip and crop of each is measured, unless `clips` and `crops` are given.
        out: Folder for index.html and a folder of each analysis.
        train_list: Training videos, for the analyses that need them.
        limit: Tested videos, drawn at random, and four times as many training videos; or all.
        boxes: CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        What the page is of; each analysis has results.json in its folder.
    """
    if limit != "all" and limit < 2:
        raise ConfigError(f"limit={limit} is less than 2")
    folder, where = Path(out), None if boxes is None else Path(boxes)
    lists = {"list": path_of(videos), "train_list": path_of(train_list)}
    folders = [*(part.name for part in PARTS), GRADCAM.name, "lists/test", "lists/train"]
    check_names(folder, [f"{name}/results.json" for name in folders])
    claim_results(folder, "analysis", lists, [file_of(model), options.get("cfg"), where])
    # The same clips in every section, so that each number is there once: one, as 95 versions of each are corrupted.
    options = {**options, "clips": options.get("clips") or 1, "crops": options.get("crops") or 1}
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options)
        subject = replace(subject, extractor=KeptFeatures(subject.classify))
        count, train = None if limit == "all" else limit, None
        query = distributed.on_main(lambda: draw_videos(videos, options, count, folder / "lists" / "test"))
        if train_list is not None:
            more, of_training = None if count is None else _TRAIN * count, train_list
            train = distributed.on_main(lambda: draw_videos(of_training, options, more, folder / "lists" / "train"))
        overlap = subject.count_overlap(query, train)
        sections = [_section(part, subject, query, train, folder, options, where) for part in PARTS]
        sections.append(_gradcam(subject, query, folder / "gradcam", where))
        results = _results(subject, query, train, sections, overlap)
        page = folder / "index.html"

        def write() -> None:
            write_results(folder, results)
            details = _details(subject, query, path_of(videos), train, path_of(train_list))
            write_report_page(
                page,
                title=f"Analysis of {subject.name}",
                details=details,
                sections=sections,
                left_out=[*left_out().values()],
            )

        distributed.on_main(write)
    found = JobResults(results)
    found.text = "\n".join(f"{section.title}: {section.reason or 'measured'}" for section in sections)
    found.file = page
    return found


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


def _section(
    part: Part,
    subject: Subject,
    query: VideoList,
    train: VideoList | None,
    folder: Path,
    options: NetworkOptions,
    boxes: Path | None,
) -> Section:
    """Run one analysis; an error that the user could fix becomes the reason why it is left out."""
    if part.boxes and boxes is None:
        return Section(part.name, part.title, part.text, reason="it needs boxes=FILE")
    out, image = folder / part.name, None
    try:
        measurement = part.measurement(boxes)
        measurement.options(options)  # an error if it does not measure such clips
        used = train if part.trains else None
        lists = {"list": query.path, "train_list": None if used is None else used.path}
        claim_results(out, measurement.kind, lists, [Path(subject.name), *measurement.files()])
        results = prepare(measurement, subject, query, used).measure(out)
        if part.name == "classes":
            results = {**results, "curve": [analyze_uniformity.point(results)]}
        networks: Mapping[str, Results] = {subject.name: results}
        text = part.table(networks)
        if part.chart is not None:
            name, draw = part.chart
            image = distributed.on_main(lambda: draw(networks))
            drawn = image
            distributed.on_main(lambda: write_whole(out / name, drawn))
    except (ConfigError, DataError) as error:
        return _left_out(Section(part.name, part.title, part.text), error)
    link = None if part.link is None else (part.link[0], f"{part.name}/{part.link[1]}")
    return Section(part.name, part.title, part.text, text, image, link=link)


def _gradcam(subject: Subject, query: VideoList, out: Path, boxes: Path | None) -> Section:
    """Draw the maps of the network."""
    try:
        text, image = analyze_gradcam.draw_maps(subject, query, out, boxes)
    except (ConfigError, DataError) as error:
        return _left_out(GRADCAM, error)
    return replace(GRADCAM, text=text, image=image)


def _left_out(section: Section, error: Exception) -> Section:
    _log.warning("%s is left out: %s", section.name, error)
    return replace(section, reason=str(error), link=None)


def _results(
    subject: Subject, query: VideoList, train: VideoList | None, sections: list[Section], overlap: Tree
) -> Results:
    """What `results.json` beside the page states; each analysis has its own."""
    content = {
        "num_videos": len(query),
        "left_out": {section.name: section.reason for section in sections if section.reason},
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
