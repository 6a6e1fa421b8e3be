"""The command `analyze all`: every analysis of a network, on a subset of the videos, on one page."""

import argparse
import importlib
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vidssl import distributed
from vidssl.commands import parse_command
from vidssl.commands.arguments import in_options, print_results
from vidssl.commands.load import Subject, class_hash, load_subject, network_options
from vidssl.commands.results import claim_results, format_clips
from vidssl.commands.test import fingerprints
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import copy_list
from vidssl.distributed import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.result_files import Results, complete, write_results
from vidssl.output_folder import check_names
from vidssl.randomness import generator
from vidssl.viz.result_pages import Section, write_report_page

_log = logging.getLogger(__name__)
_TRAIN = 4  # times as many training videos as tested ones
_OWN = ("input", "checkpoint", "out", "train_list", "videos", "overrides")  # each analysis has its own


@dataclass(frozen=True)
class Part:
    """One analysis: a command with a folder of its own, and its section of the page."""

    name: str  # of the folder
    title: str
    text: str  # what it measures
    command: str
    words: tuple[str, ...] = ()  # of the command line, before the list
    options: tuple[str, ...] = ()  # after it
    image: str | None = None  # in the folder
    trains: bool = False  # uses the training videos
    boxes: bool = False  # needs --boxes
    link: tuple[str, str] | None = None  # text, and a file in the folder


PARTS = (
    Part(
        "numbers",
        "Numbers",
        "Retrieval, kNN and uniformity of the features, and the accuracy of the network's own classifier.",
        "test",
        trains=True,
    ),
    Part(
        "order",
        "Order of time",
        "Whether a linear classifier of frozen features separates clips from the same clips reversed. Chance is 50.",
        "test",
        options=("--protocol", "order"),
        trains=True,
    ),
    Part(
        "classes",
        "Classes",
        "How evenly the features cover the sphere, and mean squared distances within and between classes.",
        "analyze",
        ("classes",),
        image="classes.png",
    ),
    Part(
        "invariance",
        "Invariance",
        "Whether the units that respond to a class keep responding when the clip is transformed. 1 is chance; "
        "shuffled is what the best of many units reach by chance.",
        "analyze",
        ("invariance",),
        image="invariance.png",
    ),
    Part(
        "robustness",
        "Robustness",
        "Accuracy on corrupted videos. mPC is the mean over all corruptions and severities, rPC its ratio to the clean "
        "accuracy.",
        "analyze",
        ("robustness",),
        image="robustness.png",
        trains=True,
        link=("Examples", "examples.png"),
    ),
    Part(
        "background",
        "Background",
        "Accuracy on videos whose instance was put before the background of another video, of the same and of another "
        "class. Shortcut: classified as the class of that background.",
        "analyze",
        ("background",),
        image="background.png",
        link=("Examples", "examples.png"),
        trains=True,
        boxes=True,
    ),
    Part(
        "gradcam",
        "Grad-CAM",
        "Where the network looks in space and time: the maps of the predicted class, or of the similarity to the most "
        "similar video.",
        "analyze",
        ("gradcam",),
        image="gradcam.png",
        link=("Playing maps", "index.html"),
    ),
)


def run(parsed: argparse.Namespace) -> None:
    """Run all analyses, write the page, and print what was measured."""
    lists = {"list": parsed.input, "train_list": parsed.train_list}
    folders = [*(part.name for part in PARTS), "lists/test", "lists/train"]
    check_names(parsed.out, [f"{folder}/results.json" for folder in folders])
    claim_results(parsed.out, "analysis", lists, [parsed.checkpoint, parsed.cfg, parsed.boxes])
    # The same clips in every section, so that each number is there once: one, as 95 versions of each are corrupted.
    parsed.clips, parsed.crops = parsed.clips or 1, parsed.crops or 1
    with distributed.joined(choose_device(parsed.device)):
        subject = load_subject(network_options(parsed))  # an unusable checkpoint ends the command at once
        train, count = None, parsed.videos
        videos = distributed.on_main(lambda: draw_videos(parsed, parsed.input, count, "test"))
        if parsed.train_list is not None:
            more = None if count is None else _TRAIN * count
            train = distributed.on_main(lambda: draw_videos(parsed, parsed.train_list, more, "train"))
        overlap = subject.check_overlap(videos, train)
        sections = [_section(part, parsed, videos, train) for part in PARTS]
        left_out = {section.name: section.reason for section in sections if section.reason}
        results = _results(subject, videos, train, left_out, overlap)
        page = parsed.out / "index.html"

        def write() -> None:
            write_results(parsed.out, results)
            details = _details(parsed, subject, videos, train)
            write_report_page(page, title=f"Analysis of {parsed.checkpoint}", details=details, sections=sections)

        distributed.on_main(write)
    print_results(parsed, results, *(f"{s.title}: {s.reason or 'measured'}" for s in sections), page)


def _results(subject: Subject, videos: VideoList, train: VideoList | None, left_out: Tree, overlap: Tree) -> Results:
    """What `results.json` beside the page states; each analysis has its own."""
    content = {
        "num_videos": len(videos.records),
        "left_out": left_out,
        "list": str(videos.path),
        "train_list": None if train is None else str(train.path),
        **subject.describe(),
    }
    of_lists = fingerprints(videos, train)
    request = subject.request(
        command="analyze all",
        list=videos.fingerprint,
        classes=class_hash(videos),
        data=distributed.on_main(lambda: identify(videos)),
        train_list=of_lists["gallery"],
        train_data=None if train is None else distributed.on_main(lambda: identify(train)),
    )
    return complete(content, request=request, overlap=overlap, **of_lists)


def draw_videos(parsed: argparse.Namespace, path: Path, count: int | None, name: str) -> VideoList:
    """Draw videos of a list at random, the same each time, and write them as a list; None: all of them.

    They are drawn in pairs of a class, as analyses compare videos of a class.
    """
    listed, out = read_input(path, parsed.root, parsed.allow_external), parsed.out / "lists" / name
    order, seen, place = generator(0).permutation(len(listed.records)).tolist(), Counter[int](), dict[int, int]()
    rank = {}
    for row in order:
        label = int(listed.labels[row])
        rank[row] = seen[label] // 2, place.setdefault(label, len(place))
        seen[label] += 1
    drawn = {*sorted(order, key=rank.__getitem__)[:count]}
    names = [text if n in drawn else None for n, text in enumerate(listed.names)]
    return read_list(copy_list(listed, out, listed.root, names), None, parsed.allow_external)


def _section(part: Part, parsed: argparse.Namespace, videos: VideoList, train: VideoList | None) -> Section:
    """Run one analysis; an error that the user could fix becomes the reason why it is left out."""
    out = parsed.out / part.name
    if part.boxes and parsed.boxes is None:
        return Section(part.name, part.title, part.text, reason="it needs --boxes")
    try:
        module, options = _options(part, parsed, videos, train)
        command = importlib.import_module(f"vidssl.commands.{module}")
        text = command.summary(command.measure_parsed(options))
        image = None if part.image is None else (out / part.image).read_bytes()
    except (ConfigError, DataError) as error:
        _log.warning("%s is left out: %s", part.name, error)
        return Section(part.name, part.title, part.text, reason=in_options(str(error), parsed))
    link = None if part.link is None else (part.link[0], f"{part.name}/{part.link[1]}")
    return Section(part.name, part.title, part.text, text, image, is_chart=part.name != "gradcam", link=link)


def _options(
    part: Part, parsed: argparse.Namespace, videos: VideoList, train: VideoList | None
) -> tuple[str, argparse.Namespace]:
    """The module of an analysis, and its options: the shared ones as they were given, its own at their defaults."""
    words = [*part.words, str(videos.path), "--checkpoint", parsed.checkpoint, "--out", str(parsed.out / part.name)]
    if part.trains and train is not None:
        words += ["--train-list", str(train.path)]
    if part.boxes:
        words += ["--boxes", str(parsed.boxes)]
    module, options = parse_command(part.command, [*words, *part.options])
    given = {name: value for name, value in vars(parsed).items() if name in options and name not in _OWN}
    return module, argparse.Namespace(**{**vars(options), **given, "overrides": [*parsed.overrides]})


def _details(
    parsed: argparse.Namespace, subject: Subject, videos: VideoList, train: VideoList | None
) -> list[tuple[str, str]]:
    """What stands at the head of the page."""
    backbone = subject.run.backbone
    found = [("Videos", f"n = {len(videos.records)} of {parsed.input}")]
    if train is not None:
        found.append(("Training videos", f"{len(train.records)} of {parsed.train_list}"))
    step = subject.origin.get("step")
    test = subject.test
    clips = f"{format_clips(dict(test))}, {test.clip.frames} frames each"
    found += [("Backbone", f"{backbone.name}, {subject.encoder.dim} features"), ("Clips", clips)]
    return found + ([("Step", f"{step:,}")] if step is not None else [])
