"""A page with the views that a config trains on, or the clips that a network is measured on.

`show_views` and `show_clips` return them as arrays.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vidssl.base.command_line_and_notices import leave_out, left_out
from vidssl.base.config import Tree, build, to_yaml
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError, DataError, how_many
from vidssl.base.output_folder import claim
from vidssl.base.progress import Report
from vidssl.base.progress import progress as bar
from vidssl.base.types import Frames, VideoMeta
from vidssl.base.worker_pool import ItemGuard, ordered
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import SampleKey, keys_of_step
from vidssl.data.track_files import tracks_name
from vidssl.data.video_list import VideoList
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.run_config import Run, bind_run, names_split
from vidssl.engine.run_setup import initial_backbone, training_dataset
from vidssl.engine.training_lists import training_list
from vidssl.evaluation.result_files import clips_in_words
from vidssl.jobs.job import Count, File, Model, NetworkOptions, Videos, job, read_videos
from vidssl.jobs.load_network import Subject, load_subject
from vidssl.jobs.train import Config, Setting, listed_videos, read_config, set_list
from vidssl.methods.base import METHODS, Method
from vidssl.page.figure_style import COLORS
from vidssl.page.previews import number_previews, preview
from vidssl.page.render import render_page


@dataclass(frozen=True)
class ShownView:
    """A view as the network gets it, before normalisation, and the frames that it was made of."""

    frames: Frames  # (T, 3, S, S) uint8 RGB; an encoder that takes any shape: (T, 3, H, W)
    clip: int  # its number: a recipe may make several views of one clip
    indices: NDArray[np.int64]  # (T,) frames of the file
    first: int  # the frames of the file that the clip covers, both ends included
    last: int
    difference: bool  # whether it is an RGB difference
    box: NDArray[np.float32] | None  # (4,) xyxy in pixels of the view: its tracked region. None: a run without tracks


@dataclass(frozen=True)
class ShownSample:
    """What training makes of a row of its list in an epoch, or an evaluation of a row of its list."""

    epoch: int
    row: int  # of the list
    used: int  # the row whose video is used: in training another one, if that of `row` is broken
    replaced: tuple[tuple[str, str], ...]  # path and reason of the broken videos before it
    meta: VideoMeta | None  # of the span of the row that is used; None: there is none, training stops at this row
    offset: int  # first frame of the span in the file
    views: tuple[ShownView, ...]
    start: float = 0.0  # seconds of the file at which the span begins

    def time_of(self, frame: float) -> float:
        """Second of the file at which a frame of the file begins; between two frames if it is not a whole number."""
        assert self.meta is not None
        number = int(frame) - self.offset
        begin, end = self.meta.time_of(number), self.meta.time_of(min(number + 1, self.meta.num_frames))
        return self.start + begin + (frame - int(frame)) * (end - begin)


@job
def show(
    cfg: Config | None = None,
    *settings: Setting,
    model: Model | None = None,
    videos: Videos | None = None,
    out: File,
    limit: Count = 8,
    draws: Count = 3,
    trust: bool = False,
    imports: Sequence[str] = (),
    progress: Report = None,
) -> Path:
    """Draw the views that a config trains on: a page with videos, their sampled frames and augmented clips.

    With a network it has the clips that the network is measured on, as its preprocessing makes them.

    Args:
        cfg: As of `train`; with a network, as of `test`.
        settings: As of `train`; with a network, as of `test`.
        model: Show the clips on which this network is measured, by its own settings; as of `test`.
        videos: Videos to show instead of `data.train`; those of a network.
        out: Folder for index.html.
        limit: First N videos of the first epoch; with a network, of the list.
        draws: Epochs, each with new draws; a network has one, as its clips are always the same.
        trust: Load a checkpoint with pickled objects; such a file can run any code.
        imports: Modules with your own methods, backbones … that the weights of a network name.
        progress: Called with (videos done, all videos, title); False: no progress; None: a bar.

    Returns:
        The path of the page.

    Raises:
        ConfigError: There is neither a config nor a network, or a network without videos.
    """
    if model is not None:
        if videos is None:
            raise ConfigError("the clips of a network are shown of videos: give a list, a folder or files")
        options: NetworkOptions = {"settings": [*map(str, settings)], "trust": trust}
        if cfg is not None:
            options["cfg"] = str(cfg)
        return _show_network(load_subject(model, options), read_videos(videos, {}), Path(out), limit)
    if cfg is None:
        raise ConfigError("show draws the views of a config or the clips of a network: give cfg=FILE or model=NAME")
    tree, source = read_config(cfg, settings)
    new = set_list(tree, source, listed_videos(videos), Path(out) / "videos")
    if names_split(tree):
        raise ConfigError(f"{source} is for several splits: replace {{split}} in its settings")
    run = bind_run(tree, source)
    if new is not None:
        claim(Path(out), "views")
        new.write()
    return show_run(run, Path(out), limit, draws, source)


def show_views(run: Run, videos: int = 8, draws: int = 3) -> Iterator[list[ShownSample]]:
    """Make the views of the first videos of the first epoch: for each of them a list with its sample in each epoch.

    They are those of training: every random choice is a function of (seed, epoch, index, view), whatever the number of
    workers and processes. A video that is broken, hangs or crashes is replaced as in training. If the run makes its
    tracks itself, all epochs have those of its first step.
    """
    listed = training_list(run)
    count = min(videos, len(listed))
    rows = [row for _, row in keys_of_step(0, count, len(listed), run.seed, listed.joined)]
    keys = [(epoch, row) for row in rows for epoch in range(draws)]
    tracks = RunTracks(run, listed)
    with ExitStack() as stack:
        folder = tracks.folder(0)
        if tracks.due(0):
            output = stack.enter_context(tempfile.TemporaryDirectory())
            folder = _first_tracks(run.model_copy(update={"output": output}), listed, rows)
        dataset = training_dataset(run, listed, folder)
        samples = _samples(dataset, keys, run.data.workers, run.data.timeout)
        for _ in rows:
            yield [next(samples) for _ in range(draws)]


def show_clips(subject: Subject, listed: VideoList, videos: int = 8) -> Iterator[ShownSample]:
    """Make the clips of the first videos of a list as a network gets them, all crops of each; broken ones have none."""
    test = subject.test.model_copy(update={"allow_missing": True})
    keys = [(0, row) for row in range(min(videos, len(listed)))]
    return _samples(test.dataset(listed), keys, test.workers, test.timeout)


def _first_tracks(run: Run, listed: VideoList, rows: Sequence[int]) -> Path | None:
    """Track some videos as the run does before its first step, into its output; return the folder of the tracks."""
    with torch.random.fork_rng([]):
        torch.manual_seed(run.seed)
        device = choose_device(run.device)
        method: Method = build(METHODS, run.method, initial_backbone(run))
    network = method.target_backbone.to(device)
    tracked: set[int] = set()
    while needed := [row for row in rows if row not in tracked]:
        tracks = RunTracks(run, listed.rows(needed))
        left_out = tracks.make(0, network, device, StopRequest())
        tracked.update(needed)
        # A video that cannot be decoded is replaced by the next one.
        broken = [row for row in needed if tracks_name(listed.names[row], listed.records[row]) in left_out]
        rows = [(row + 1) % len(listed) for row in broken]
    return tracks.folder(0)


def _samples(dataset: ClipDataset, keys: Sequence[SampleKey], workers: int, timeout: float) -> Iterator[ShownSample]:
    # A failed video is replaced.
    return ordered(partial(_sample, dataset), keys, workers, timeout=timeout, on_failure=lambda row, reason: None)


def _sample(dataset: ClipDataset, key: SampleKey, guard: ItemGuard) -> ShownSample:
    """Make a sample, in training with the video that replaces a broken one."""
    epoch, row = key
    try:
        sample = dataset.sample(key, guard)
    except DataError as error:
        return ShownSample(epoch, row, row, ((dataset.videos.records[row].path, str(error)),), None, 0, ())
    used = sample.index
    if not sample.views:
        return ShownSample(epoch, row, used, sample.replaced, None, 0, ())
    with dataset.reading.open(dataset.videos.records[used]) as video:
        planned = dataset.plan((epoch, used), video.meta)
        augmented = planned.views.make(video.frames(planned.frames))
        start = video.meta.time_of(planned.offset)
    views = []
    for n, number in enumerate(augmented.clip_of):
        clip, offset = planned.views.clips[number], planned.offset
        first, last = clip.first + offset, clip.last + offset
        difference = len(planned.views.clip_frames[number]) > 1
        box = None if sample.boxes is None else sample.boxes[n]
        views.append(ShownView(sample.views[n], number, clip.indices + offset, first, last, difference, box))
    return ShownSample(epoch, row, used, sample.replaced, planned.meta, planned.offset, tuple(views), start)


# The page ---------------------------------------------------------------------------------------------------


def show_run(run: Run, out: Path, videos: int = 8, draws: int = 3, name: str = "config") -> Path:
    """Write `index.html` into a folder; returns the path of the page.

    `name` is that of the config.
    """
    listed = training_list(run)
    total = min(videos, len(listed))
    data = run.model_dump(mode="json")["data"]
    settings = [("sampler", data["sampler"]), *((f"recipe {n}", view) for n, view in enumerate(data["views"]))]
    details = [
        ("Config", Path(name).name),
        ("List", f"{listed.path}, {how_many(len(listed), 'video')}"),
        ("Shown", f"the first {how_many(total, 'video')} of the first epoch"),
        ("Draws", f"those of epochs 0 to {draws - 1}" if draws > 1 else "those of epoch 0"),
        ("Seed", str(run.seed)),
    ]
    if run.tracks is not None and run.tracks.folder is None:
        details.append(("Tracks", f"those of the first step; training renews them every {run.tracks.refresh:g} epochs"))
    samples = show_views(run, videos, draws)
    return _write_page(out, f"Views of {Path(name).stem}", details, settings, listed, samples, total)


def _show_network(subject: Subject, listed: VideoList, out: Path, videos: int) -> Path:
    """Write the page of a network."""
    total, protocol = min(videos, len(listed)), subject.describe()["protocol"]
    details = [
        ("Network", subject.name),
        ("List", f"{listed.path}, {how_many(len(listed), 'video')}"),
        ("Shown", "all" if total == len(listed) else f"the first {how_many(total, 'video')}"),
        ("Clips of a video", clips_in_words(protocol)),
        ("Crops of a clip", " + ".join(str(part["crops"]) for part in protocol.get("parts", [protocol]))),
    ]
    samples = ([sample] for sample in show_clips(subject, listed, videos))
    settings = [("evaluation", protocol)]
    return _write_page(out, f"Views of {subject.name}", details, settings, listed, samples, total, trains=False)


def _write_page(
    out: Path,
    title: str,
    details: Sequence[tuple[str, str]],
    settings: Sequence[tuple[str, Tree]],
    listed: VideoList,
    samples_of_videos: Iterable[list[ShownSample]],
    total: int,
    trains: bool = True,
) -> Path:
    claim(out, "views", read=[listed.path])
    cards = []
    for samples in bar(samples_of_videos, title="show", unit="video", total=total, leave=False):
        leave_out(pair for sample in samples for pair in sample.replaced)
        cards.append(video_card(samples, listed, trains))
    if not any(draw["views"] for card in cards for draw in card["draws"]):
        reason = next(iter(left_out().values()), "")
        raise DataError(f"none of the {total} videos of {listed.path} can be read; the first: {reason}")
    texts = [(name, to_yaml(tree)) for name, tree in settings]
    write_views_page(out / "index.html", title, details, texts, cards, [*left_out().values()])
    return out / "index.html"


def write_views_page(
    path: Path,
    title: str,
    details: Sequence[tuple[str, str]],
    settings: Sequence[tuple[str, str]],
    videos: Sequence[Tree],
    left_out: Sequence[str] = (),
) -> None:
    """Write the page of `video_card`s: `details` are names and values at its head, `settings` titles and YAML."""
    views = [view for video in videos for draw in video["draws"] for view in draw["views"]]
    render_page(
        path,
        Path(__file__).with_name("views.html"),
        title=title,
        details=details,
        settings=settings,
        videos=videos,
        left_out=left_out,
        colors=COLORS,
        sprites=number_previews(view["clip"] for view in views),
    )


def video_card(samples: Sequence[ShownSample], listed: VideoList, trains: bool = True) -> Tree:
    """Describe a video and its draws for the page."""
    first = samples[0]
    record, meta = listed.records[first.row], first.meta
    facts = [] if record.label < 0 else [f"class {listed.class_name(record.label)}"]
    if meta is not None and first.used == first.row:
        facts += [f"{how_many(meta.num_frames, 'frame')} of {meta.width} x {meta.height}", f"{meta.fps:.4g} fps"]
        if (record.start, record.end) != (None, None):
            facts.append("a span of its file")
    facts.append(f"row {first.row} of the list")
    draws = [_draw(sample, listed, trains) for sample in samples]
    return {"name": listed.names[first.row], "facts": ", ".join(facts), "draws": draws}


def _draw(sample: ShownSample, listed: VideoList, trains: bool) -> Tree:
    """Place the clips of a sample on the time line, and describe its views; clips of one number have one colour."""
    notice = None
    if sample.replaced:
        reasons = "; ".join(reason for _, reason in sample.replaced)
        what = "training stops here" if sample.meta is None else f"training uses {listed.names[sample.used]} instead"
        notice = f"{reasons}: {what}" if trains else reasons
    clips, views = dict[int, Tree](), []
    for n, view in enumerate(sample.views):
        color = view.clip % len(COLORS)
        first, end = sample.time_of(view.first), sample.time_of(view.last + 1)
        middles = [sample.time_of(frame + 0.5) for frame in view.indices.tolist()]
        clips[view.clip] = {"name": f"clip {view.clip}", "color": color, "first": first, "end": end, "frames": middles}
        drawn = {"name": f"view {n}", "color": color, "clip": preview(view.frames, height=128)}
        views.append({**drawn, "notes": _notes(view, first, end), "box": _box(view)})
    return {
        "title": f"Epoch {sample.epoch}" if trains else "Clips",
        "notice": notice,
        "start": sample.start,
        "end": sample.start + (1.0 if sample.meta is None else sample.meta.duration),
        "clips": [*clips.values()],
        "views": views,
    }


def _notes(view: ShownView, first: float, end: float) -> tuple[str, ...]:
    frames, (height, width) = len(view.frames), view.frames.shape[-2:]
    size = f"{width}²" if height == width else f"{width} x {height}"
    steps, order = np.diff(view.indices), ""
    if (steps < 0).any():
        order = ", reversed" if (steps <= 0).all() else ", looped"
    notes = [(f"{frames} x {size}" if frames > 1 else size) + order, f"{first:.2f}–{end:.2f} s"]
    if view.difference:
        notes.append("RGB difference")
    if view.box is not None:
        notes.append("no common track" if _box(view) is None else "box of the middle frame" if frames > 1 else "box")
    return tuple(notes)


def _box(view: ShownView) -> tuple[float, float, float, float] | None:
    """Left, top, width and height of the tracked region, fractions of the view; None for the whole view."""
    size = view.frames.shape[-1]
    if view.box is None or (view.box == (0, 0, size, size)).all():
        return None
    left, top, right, bottom = (view.box / size).tolist()
    return left, top, right - left, bottom - top
