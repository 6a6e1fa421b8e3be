"""Batches: a function of seed and step, each video equally often, broken ones reported."""

import logging
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl.apps.check import check
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import Batch, Sample
from vidssl.base.worker_pool import ItemGuard
from vidssl.data.clip_samplers import Random, Uniform
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, StepSampler, eval_loader, keys_of_step
from vidssl.data.to_device import to_device
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.transforms import RECIPES
from vidssl.video import reader as video_module

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"


def training_set(path, seed=0, replace=0):
    sampler = Random(Random.Config(frames=3, seconds=0.4, jitter=0.2, reverse=0.3))
    recipes = [RECIPES[name](RECIPES[name].Config(size=24, difference=0.4)) for name in ("strong_alpha", "strong_beta")]
    return ClipDataset(read_list(path), sampler, recipes, seed, replace)


def test_set(path, skip=False):
    sampler = Uniform(Uniform.Config(frames=2, sampling_rate=2, clips=2))
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=24))
    return ClipDataset(read_list(path), sampler, [recipe], skip=skip)


test_set.__test__ = False


@pytest.mark.parametrize(("batch_size", "num_records"), [(8, 40), (6, 16), (16, 16), (7, 10), (1, 3)])
def test_every_epoch_is_a_permutation(batch_size, num_records):
    epochs = 5
    steps = epochs * num_records // batch_size
    keys = [key for step in range(steps + 1) for key in keys_of_step(step, batch_size, num_records, 3)]
    keys = keys[: epochs * num_records]
    assert [epoch for epoch, _ in keys] == sorted(epoch for epoch, _ in keys)
    for epoch in range(epochs):
        assert sorted(index for e, index in keys if e == epoch) == list(range(num_records))
    orders = [[index for e, index in keys if e == epoch] for epoch in range(epochs)]
    assert num_records == 3 or len({tuple(order) for order in orders}) == epochs
    assert keys_of_step(0, batch_size, num_records, 4) != keys[:batch_size] or num_records == 3


def test_batches_straddle_epochs():
    assert [epoch for epoch, _ in keys_of_step(2, 6, 16, 0)] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(("world", "micro"), [(1, 12), (2, 6), (2, 3), (4, 1), (3, 2)])
def test_slices_of_processes_make_the_global_batch(world, micro):
    samplers = [StepSampler(40, 12, micro, 3, 9, 5, rank, world) for rank in range(world)]
    parts = [list(sampler) for sampler in samplers]
    number = 12 // world // micro  # of micro-batches
    for part, sampler in zip(parts, samplers, strict=True):
        assert len(part) == len(sampler) == 6 * number
        assert all(len(keys) == micro for keys in part)
    for place, step in enumerate(range(3, 9)):
        joined = [key for part in parts for keys in part[place * number : (place + 1) * number] for key in keys]
        assert joined == keys_of_step(step, 12, 40, 5)


def test_sizes_that_do_not_fit():
    with pytest.raises(ConfigError, match="batch_size 17 is more than the 16 records"):
        StepSampler(16, 17, 17, 0, 1, 0)
    with pytest.raises(ConfigError, match="batch_size 12 is not a multiple of 2 processes x micro_batch_size 4"):
        StepSampler(16, 12, 4, 0, 1, 0, world=2)


def batches(dataset, start, stop, workers, seed=0):
    return list(Loader(dataset, StepSampler(len(dataset), 6, 6, start, stop, seed), workers))


def assert_equal(a: list[Batch], b: list[Batch]):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert len(one.views) == len(other.views) and one.replaced == other.replaced
        for x, y in zip((*one.views, one.label, one.index), (*other.views, other.label, other.index), strict=True):
            assert torch.equal(x, y)


def test_32_batches_do_not_depend_on_workers_or_on_the_start(digits):
    path = digits / "motion/test.csv"
    straight = batches(training_set(path), 0, 5, 0)  # 30 samples of 16 videos: into the second epoch
    torch.manual_seed(99)
    np.random.default_rng(3)  # noqa: TID251 - global states must not matter
    for workers in (0, 2):
        assert_equal(batches(training_set(path), 0, 5, workers), straight)
        assert_equal(batches(training_set(path), 3, 5, workers), straight[3:])
    other = batches(training_set(path, seed=1), 0, 5, 0)
    assert not any(torch.equal(a.views[0], b.views[0]) for a, b in zip(straight, other, strict=True))
    index = torch.cat([batch.index for batch in straight])
    assert sorted(index[:16].tolist()) == list(range(16))
    label = [record.label for record in read_list(path).records]
    assert torch.cat([batch.label for batch in straight]).tolist() == [label[i] for i in index]


def test_a_worker_has_at_most_two_batches_begun(digits):
    begun = []

    class Batches(list):
        def __iter__(self):
            for keys in super().__iter__():
                begun.append(keys)
                yield keys

    batches_ = Batches([(0, n % 16)] for n in range(20))
    loader = Loader(training_set(digits / "motion/test.csv"), batches_, 2)
    for number, batch in enumerate(loader):
        assert batch.index.tolist() == [number % 16]
        assert number < len(begun) <= min(20, number + 2 * 2)
    assert len(begun) == 20


def test_loading_leaves_the_global_random_state_alone(digits):
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    batches(training_set(digits / "motion/test.csv"), 0, 2, 1)
    assert torch.equal(torch.get_rng_state(), expected)


def test_the_same_video_gives_other_views_in_the_next_epoch(digits):
    dataset = training_set(digits / "motion/test.csv")
    a, b, again = dataset[0, 3], dataset[1, 3], dataset[0, 3]
    assert np.array_equal(a.views[0], again.views[0]) and a.index == b.index == 3
    assert a.views[0].shape == b.views[0].shape
    assert not np.array_equal(a.views[0], b.views[0]) and not np.array_equal(a.views[0], a.views[1])
    with pytest.raises(TypeError, match=r"^views depend on the epoch: use dataset\[epoch, 3\], not dataset\[3\]$"):
        dataset[3]


def test_batches_keep_pixels_and_memory_layout(digits):
    pixels = np.arange(2 * 2 * 5 * 5 * 3).astype(np.uint8).reshape(2, 2, 5, 5, 3)  # (B, T, S, S, C)
    samples = [Sample((clip.transpose(0, 3, 1, 2),), n, 10 + n) for n, clip in enumerate(pixels)]

    class Fixed(ClipDataset):
        def sample(self, key, guard):
            return samples[key[1]]

    dataset = test_set(digits / "motion/test.csv")
    (batch,) = Loader(Fixed(dataset.videos, dataset.sampler, dataset.recipes), [[(0, 0), (0, 1)]], 0)
    assert batch.views[0].dtype == torch.uint8 and batch.views[0].shape == (2, 2, 3, 5, 5)
    assert np.array_equal(batch.views[0].numpy(), pixels.transpose(0, 1, 4, 2, 3))
    assert batch.views[0].permute(0, 1, 3, 4, 2).is_contiguous()
    assert (batch.label.tolist(), batch.index.tolist()) == ([0, 1], [10, 11])
    assert batch.label.dtype == batch.index.dtype == torch.int64


@pytest.mark.parametrize(("mean", "std"), [((0.45,), (0.225,)), ((0.1, 0.2, 0.3), (0.5, 0.25, 2.0))])
def test_to_device_normalises(digits, mean, std):
    (raw,) = batches(training_set(digits / "motion/test.csv"), 0, 1, 0)
    batch = to_device(raw, torch.device("cpu"), mean, std)
    shift, scale = (np.resize(np.array(v), 3).reshape(1, 3, 1, 1, 1) for v in (mean, std))
    for view, pixels in zip(batch.views, raw.views, strict=True):
        assert view.shape == (6, 3, 3, 24, 24) and view.dtype == torch.float32
        clips = pixels.numpy().astype(np.float64).transpose(0, 2, 1, 3, 4)  # (B, C, T, S, S)
        np.testing.assert_allclose(view.numpy(), (clips / 255 - shift) / scale, rtol=0, atol=2e-6)
        assert view.is_contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(batch.label, raw.label) and torch.equal(batch.index, raw.index)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 3, 16, 50])
def test_28_evaluation_sees_each_video_once(digits, batch_size, world):
    dataset = test_set(digits / "motion/test.csv")
    seen = Counter()
    for rank in range(world):
        loader = eval_loader(dataset, batch_size, 0, rank, world)
        keys = [key for chunk in loader.batches for key in chunk]
        assert all(1 <= len(chunk) <= batch_size for chunk in loader.batches)
        assert {epoch for epoch, _ in keys} <= {0}
        seen.update(index for _, index in keys)
    assert seen == Counter(range(16))


# Broken videos ----------------------------------------------------------------------------------------------


@pytest.fixture
def spoiled(digits, tmp_path):
    """Make a list of the 40 training videos of which those of the given numbers are broken."""

    def make(*broken):
        source = read_list(digits / "motion/train.csv")
        root = tmp_path / "videos"
        root.mkdir(exist_ok=True)
        rows = []
        for n, record in enumerate(source.records):
            name = f"{n:02d}.mp4"
            content = Path(record.path).read_bytes()
            (root / name).write_bytes(content[: len(content) // 2] if n in broken else content)
            rows.append((name, record.label))
        write_lists(tmp_path / "lists", root, {"train": rows}, source.classes)
        return tmp_path / "lists" / "train.csv"

    return make


def toy(path, output, *overrides):
    return load_run(TOY, [f"data.train={path}", f"output={output}", "data.moving_digits=null", *overrides])


def test_1_a_broken_video_is_replaced_by_the_next_one(spoiled):
    path = spoiled(3, 4, 39)
    dataset = training_set(path, replace=5)
    for asked, taken in ((3, 5), (4, 5), (39, 0), (2, 2)):
        sample, whole = dataset[7, asked], dataset[7, taken]
        assert (sample.index, sample.label) == (taken, whole.label)
        assert all(np.array_equal(a, b) for a, b in zip(sample.views, whole.views, strict=True))
        expected = {3: ["03", "04"], 4: ["04"], 39: ["39"], 2: []}[asked]
        assert [Path(broken).stem for broken, _ in sample.replaced] == expected
        assert all("not a video" in reason for _, reason in sample.replaced)
    with pytest.raises(DataError, match=r"03\.mp4"):
        training_set(path)[0, 3]
    with pytest.raises(DataError, match=r"2 consecutive videos are broken: .*03\.mp4.*04\.mp4"):
        training_set(path, replace=1)[0, 3]


def test_1_a_remedy_is_said_once(digits, monkeypatch):
    """Also if the reasons differ in their numbers."""
    reasons = iter([f"{n}.mp4: {n} frames are too few; set a, or b" for n in range(9)])

    def fail(*_):
        raise DataError(next(reasons))

    monkeypatch.setattr(ClipDataset, "_sample", fail)
    with pytest.raises(DataError) as caught:
        training_set(digits / "motion/train.csv", replace=4)[0, 0]
    assert str(caught.value).startswith(
        "5 consecutive videos are broken: 0.mp4: 0 frames are too few; 1.mp4: 1 frames are too few; 2.mp4: 2 frames "
        "are too few and 2 more; set a, or b; correct the list (vidssl check) or "
    )


def test_1_at_most_a_thousand_replacements_are_tried(tmp_path):
    write_lists(tmp_path / "lists", tmp_path, {"train": [(f"{n}.mp4", 0) for n in range(3000)]}, ())
    tried = []

    class Counting(ItemGuard):
        def at(self, item):
            tried.append(item)

    with pytest.raises(
        DataError,
        match=r"^1000 consecutive videos are broken: .*/2500\.mp4: .* and 997 more; correct the list "
        r"\(vidssl check\) or skip them with skip=True, .*replace=1 \(at most 1000 are tried\)$",
    ):
        training_set(tmp_path / "lists/train.csv", replace=2999).sample((0, 2500), Counting())
    assert tried == [*range(2500, 3000), *range(500)]


def test_1_training_continues_and_logs_each_broken_video_once(spoiled, tmp_path, caplog):
    path = spoiled(7, 8)
    with caplog.at_level(logging.WARNING):
        last = train(toy(path, tmp_path / "run", "steps=10"))  # 80 samples: each video twice
    assert last.exists()
    warnings = [record.getMessage() for record in caplog.records if "broken video" in record.getMessage()]
    assert len(warnings) == 2
    assert {name for name in ("07.mp4", "08.mp4") if any(name in text for text in warnings)} == {"07.mp4", "08.mp4"}


def test_3_too_many_broken_videos_stop_the_run(spoiled, tmp_path):
    path = spoiled(1, 11, 21, 31)
    with pytest.raises(DataError) as caught:
        train(toy(path, tmp_path / "run", "steps=10", "data.workers=1"))
    message = str(caught.value)
    named = sum(f"{n}1.mp4" in message for n in range(4))
    assert named == 3 and re.match(r"[34] of 40 videos are broken, data\.max_broken is 0\.05: ", message)
    assert "\n" not in message and "Traceback" not in message
    assert train(toy(path, tmp_path / "other", "steps=10", "data.max_broken=0.1")).exists()


def test_3_only_broken_videos_stop_the_run(spoiled, tmp_path):
    path = spoiled(*range(40))
    with pytest.raises(DataError, match=r"\d\d\.mp4: not a video") as caught:
        train(toy(path, tmp_path / "run", "data.max_broken=1.0"))
    assert "Traceback" not in str(caught.value) and "\n" not in str(caught.value)


def test_4_a_broken_video_in_evaluation_is_an_error(spoiled):
    dataset = test_set(spoiled(9))
    with pytest.raises(DataError, match=r"^\S+09\.mp4: not a video[^\n]*$"):
        list(eval_loader(dataset, 4, 2))


def test_4_allow_missing_leaves_broken_videos_out_and_names_them(spoiled):
    path = spoiled(4, 5, 6, 7, 9)
    Path(read_list(path).records[20].path).unlink()
    actual = list(eval_loader(test_set(path, skip=True), 4, 2))
    sizes = [len(batch.index) for batch in actual]
    assert sizes == [4, 0, 3, 4, 4, 3, 4, 4, 4, 4]
    whole = [n for n in range(40) if n not in (4, 5, 6, 7, 9, 20)]
    assert torch.cat([batch.index for batch in actual]).tolist() == whole
    assert actual[1].views == () and actual[1].index.dtype == actual[1].label.dtype == torch.int64
    missing = [pair for batch in actual for pair in batch.replaced]
    assert [Path(name).stem for name, _ in missing] == ["04", "05", "06", "07", "09", "20"]
    assert all(reason.startswith(f"{name}: ") for name, reason in missing)
    assert "not a video" in missing[0][1] and "No such file" in missing[-1][1]
    (straight,) = eval_loader(test_set(spoiled()), 40, 0)
    for n in range(2):
        views = torch.cat([batch.views[n] for batch in actual if batch.views])
        assert torch.equal(views, straight.views[n][whole])


def test_4_a_span_outside_its_file_is_a_broken_video(digits, tmp_path, write_video, numbered):
    """For example the times of a long video with files cut out of it: never one repeated frame."""
    write_video(tmp_path / "a.mp4", numbered(50))  # 2 s
    rows = [("a.mp4", 0, 83.0, 93.0), ("a.mp4", 1, 0.5, 1.5), ("a.mp4", 1, 1.5, 2.5)]
    write_lists(tmp_path / "lists", tmp_path, {"train": rows}, ())
    path = tmp_path / "lists" / "train.csv"
    said = r"a\.mp4: most of the row's span, 83-93 s, lies outside the file, which is 2\.00 s long: "
    sampler = StepSampler(3, 3, 3, 0, 1, 0)
    (batch,) = Loader(training_set(path, replace=1), sampler, 1)
    assert sorted(batch.index.tolist()) == [1, 1, 2]
    ((name, reason),) = batch.replaced
    assert name == str(tmp_path / "a.mp4") and re.search(said, reason)
    with pytest.raises(DataError, match=said):
        list(Loader(training_set(path), sampler, 1))
    with pytest.raises(DataError, match=said):
        list(eval_loader(test_set(path), 3, 1))
    (actual,) = eval_loader(test_set(path, skip=True), 3, 1)
    assert actual.index.tolist() == [1, 2] and [reason for _, reason in actual.replaced] == [reason]
    result = check(path, out=tmp_path / "clean")
    assert [(each.finding, f"{tmp_path / each.path}: {each.reason}") for each in result.findings] == [
        ("span out of range", reason)
    ]
    assert [record.start for record in read_list(result.list).records] == [0.5, 1.5]


# Videos that hang or kill their worker ----------------------------------------------------------------------


@pytest.fixture
def spell(monkeypatch):
    """Have something happen whenever one of the named videos is opened: `spell(hang, "07.mp4")`."""
    real = video_module.open_video

    def cast(what, *names):
        def opened(path, *arguments, **settings):
            if Path(path).name in names:
                what(path)
            return real(path, *arguments, **settings)

        monkeypatch.setattr(video_module, "open_video", opened)

    return cast


def hang(path):
    time.sleep(100)


def kill(path):
    os.kill(os.getpid(), signal.SIGKILL)


def test_fault_10_a_replacement_that_hangs_is_quarantined_too(spell, spoiled, caplog):
    """Record 3 is broken, 4 hangs: 5 takes both places."""
    path = spoiled(3)
    spell(hang, "04.mp4")
    dataset = training_set(path, replace=5)
    loader = Loader(dataset, [[(0, 3), (0, 9)], [(0, 10), (0, 4)], [(0, 12)]], 2, timeout=0.5)
    actual = list(loader)
    assert [batch.index.tolist() for batch in actual] == [[5, 9], [10, 5], [12]]
    assert [[Path(name).stem for name, _ in batch.replaced] for batch in actual] == [["03", "04"], ["04"], []]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "04.mp4: timed out" in warning


@pytest.mark.parametrize(("how", "said"), [(hang, "timed out after"), (kill, "was killed by signal 9")])
def test_4_a_video_that_hangs_or_kills_in_evaluation(how, said, spell, spoiled):
    path = spoiled(8)
    spell(how, "09.mp4", "30.mp4")
    with pytest.raises(DataError, match=rf"\S+(09|30)\.mp4: [^\n]*{said}[^\n]*skip=True[^\n]*$|08\.mp4: not"):
        list(eval_loader(test_set(path), 4, 2, timeout=0.3))
    actual = list(eval_loader(test_set(path, skip=True), 4, 2, timeout=0.3))
    assert torch.cat([batch.index for batch in actual]).tolist() == [n for n in range(40) if n not in (8, 9, 30)]
    missing = [pair for batch in actual for pair in batch.replaced]
    assert [Path(name).stem for name, _ in missing] == ["08", "09", "30"]
    assert said in missing[1][1] and said in missing[2][1]
