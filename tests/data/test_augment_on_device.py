"""`data.augment: device`: the views of the CPU up to rounding, from the loader to the device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vidssl.base.types import Batch, DrawnOperations, Operation, Sample, Tracks, VideoRecord
from vidssl.data.clip_samplers import Random, TrackedPair
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, StepSampler
from vidssl.data.to_device import on_device, to_device
from vidssl.data.track_files import tracks_file, write_tracks
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists
from vidssl.transforms import RECIPES, View
from vidssl.transforms.recipes import Strong

CPU = torch.device("cpu")
SIZES = {"strong_alpha": 32, "strong_beta": 24, "infomin": 16, "center_crop": 20}


def recipe(name, **settings):
    return RECIPES[name](RECIPES[name].Config(**settings))


@pytest.fixture
def dataset(digits):
    """Several views of several sizes, some of them RGB differences, one without operations."""
    sampler = Random(Random.Config(frames=3, seconds=0.4, jitter=0.2, reverse=0.3))
    recipes = [recipe(name, size=size) for name, size in SIZES.items()]
    recipes[1] = recipe("strong_beta", size=24, difference=0.5)
    return ClipDataset(read_list(digits / "motion/test.csv"), sampler, recipes, seed=3)


def batches(dataset, start=0, workers=0):
    return list(Loader(dataset, StepSampler(len(dataset), 6, 6, start, 4, 0), workers))


def same(one: Batch, other: Batch, tolerance=0):
    assert len(one.views) == len(other.views) and one.operations == other.operations == ()
    for a, b in zip(one.views, other.views, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        difference = (a.float() - b.float()).abs()
        assert (difference > tolerance).float().mean() <= (1e-5 if tolerance else 0.0)
        assert (difference > 0).float().mean() < 1e-3
    for name in ("label", "index", "boxes", "mask"):
        x, y = getattr(one, name), getattr(other, name)
        assert (x is None) == (y is None) and (x is None or torch.equal(x, y))
    assert one.replaced == other.replaced


def test_batches_are_those_of_the_cpu_up_to_rounding(dataset):
    raw = batches(replace(dataset, on_device=True))
    for one, other in zip(raw, batches(dataset), strict=True):
        assert len(one.operations) == len(SIZES) and one.operations[3].groups == ()
        assert not torch.equal(one.views[0], other.views[0])  # something is left to do
        before = [view.clone() for view in one.views]
        same(to_device(one, CPU), other, tolerance=2)
        assert all(map(torch.equal, one.views, before))


def test_normalised_batches_have_the_layout_of_the_cpu(dataset):
    loaders = [Loader(replace(dataset, on_device=here), [[(0, n) for n in range(5)]], 0) for here in (True, False)]
    (one,), (other,) = (list(on_device(loader, CPU, (0.45,), (0.225,))) for loader in loaders)
    same(one, other, tolerance=2.01 / 255 / 0.225)
    assert one.views[0].is_contiguous(memory_format=torch.channels_last_3d)


def test_samples_of_one_file_in_one_pass_leave_the_same_operations(dataset, digits, tmp_path):
    name, root = read_list(digits / "motion/test.csv").names[0], read_list(digits / "motion/test.csv").root
    write_lists(tmp_path, root, {"spans": [(name, 0)]}, ())
    path = tmp_path / "spans.csv"
    path.write_text("path,label,start,end\n" + "".join(f"{name},0,{n / 10},{n / 10 + 0.5}\n" for n in range(3)))
    spans = replace(dataset, videos=read_list(path, root), on_device=True)
    keys = [(0, n) for n in range(3)]
    (together,) = Loader(spans, [keys], 0)
    same(to_device(together, CPU), to_device(next(iter(Loader(replace(spans, on_device=False), [keys], 0))), CPU), 2)


def test_boxes_of_tracks_are_the_same(digits, tmp_path):
    """Flips are drawn with the crop, so boxes follow them although the device flips."""
    videos = read_list(digits / "motion/test.csv")
    for name in videos.names:
        boxes = np.tile(np.array([12, 10, 30, 34], np.float32), (12, 1)) + np.arange(12, dtype=np.float32)[:, None] / 2
        tracks = Tracks(2 * np.arange(12), boxes, np.ones(12, np.float32), np.zeros(12, np.int64))
        write_tracks(tracks_file(tmp_path, name, VideoRecord(name)), tracks, {"by": "hand"})
    sampler = TrackedPair(TrackedPair.Config(frames=1, sampling_rate=1, min_gap=6, untracked="pair"))
    recipes = [recipe("strong", size=size, area=(0.5, 1.0)) for size in (32, 24)]
    cpu = ClipDataset(videos, sampler, recipes, tracks=tmp_path)
    flipped = 0
    for one, other in zip(batches(replace(cpu, on_device=True)), batches(cpu), strict=True):
        assert one.boxes is not None and len(one.boxes.unique(dim=0)) > 3
        same(to_device(one, CPU), other, tolerance=2)
        flipped += sum(size for drawn in one.operations for name, _, size in drawn.groups if name == "flip")
    assert 10 < flipped < 40  # of 48


def test_a_recipe_that_does_more_than_it_draws_runs_in_the_worker(dataset):
    class Darker(Strong):
        def __call__(self, frames, generator):
            return [View(view.frames // 2, view.window) for view in super().__call__(frames, generator)]

    darker = replace(dataset, recipes=[Darker(Strong.Config(size=24)), recipe("strong", size=24)])
    for one, other in zip(batches(replace(darker, on_device=True)), batches(darker), strict=True):
        assert one.operations[0].groups == () and one.operations[1].groups
        assert torch.equal(one.views[0], other.views[0])
        same(to_device(one, CPU), other, tolerance=2)


def test_operations_must_fit_the_views():
    view = np.zeros((1, 3, 4, 4), np.uint8)
    with pytest.raises(ValueError, match="operations of 2 views for 1"):
        Sample((view,), 0, 0, operations=((), (Operation("flip"),)))
    none = DrawnOperations((), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    with pytest.raises(ValueError, match="operations of 2 views for 1"):
        Batch((torch.zeros(1, 1, 3, 4, 4),), torch.zeros(1), torch.zeros(1), operations=(none, none))
