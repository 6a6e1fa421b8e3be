"""Extraction: the average over all crops of all clips, once for each video, and no trace left behind."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl.base import distributed
from vidssl.base.errors import ConfigError, DataError, VidsslError
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.loader import eval_loader
from vidssl.data.to_device import to_device
from vidssl.data.video_list import read_list
from vidssl.evaluation.features import TestClips, _Columns, extract_features
from vidssl.models.backbones import Backbone, build_backbone
from vidssl.video.reader import open_video

CPU = torch.device("cpu")


def clips(**changes):
    settings = {
        "clip": ClipSettings(frames=3, seconds=0.4),
        "clips": 10,
        "crops": 3,
        "size": 24,
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.25, 0.3),
        "batch_size": 3,
        "workers": 0,
    }
    return TestClips(**{**settings, **changes})


@pytest.fixture
def few(digits, tmp_path):
    """A list of five test videos."""
    lines = (digits / "motion/test.csv").read_text().splitlines()[:6]
    (tmp_path / "few.csv").write_text("\n".join(lines) + "\n")
    return read_list(tmp_path / "few.csv", root=digits)


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return build_backbone("resnet3d18", width=8).eval()


class Pixels(Backbone):
    """A backbone whose features are the first frame's central pixels and the mean: easy to compute by hand."""

    dim = 4

    def forward(self, x):
        return torch.cat([x[:, :, 0, 12, 12], x.mean(dim=(1, 2, 3, 4))[:, None]], dim=1)


def test_features_are_the_average_of_thirty_crops(tmp_path, write_video):
    random = np.random.Generator(np.random.PCG64(0))
    # 24 high, so that nothing is resized; crops of 24 start at 0, 12 and 24 of 48.
    videos = []
    for n, count in enumerate((11, 25, 60)):
        noise = random.integers(0, 255, (count, 6, 12, 3)).astype(np.uint8)
        write_video(tmp_path / f"{n}.mp4", noise.repeat(4, axis=1).repeat(4, axis=2))
        videos.append(f"{n}.mp4,{n}")
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *videos]) + "\n")
    listed = read_list(tmp_path / "list.csv")
    features = extract_features(Pixels(), listed, clips(), CPU)
    assert features.x.shape == (3, 4) and features.x.dtype == torch.float32
    assert features.index.tolist() == features.label.tolist() == [0, 1, 2]
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
    for row, record, count in zip(features.x, listed.records, (11, 25, 60), strict=True):
        with open_video(record.path) as video:
            frames = (video.frames(range(count)).transpose(0, 2, 3, 1) / 255 - mean) / std  # (T, H, W, C)
        views = []
        for n in range(10):
            start = round((count - 10) * n / 9)  # the clip spans 10 frames and keeps 0, 4 and 9
            for left in (0, 12, 24):
                view = frames[[start, start + 4, start + 9], :, left : left + 24]
                views.append([*view[0, 12, 12], view.mean()])
        assert len(views) == 30
        np.testing.assert_allclose(row.numpy(), np.mean(views, axis=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (2, 1)])
def test_batches_and_workers_change_nothing(few, backbone, batch_size, workers):
    settings = {"clips": 2, "crops": 3}
    expected = extract_features(backbone, few, clips(**settings), CPU)
    features = extract_features(backbone, few, clips(**settings, batch_size=batch_size, workers=workers), CPU)
    assert torch.equal(features.index, expected.index) and torch.equal(features.label, expected.label)
    torch.testing.assert_close(features.x, expected.x, rtol=1e-5, atol=1e-6)
    assert expected.label.tolist() == [record.label for record in few.records]
    assert expected.index.tolist() == list(range(5))
    assert torch.pdist(expected.x).min() > 1e-3  # they do differ


@pytest.mark.parametrize(
    ("settings", "first", "place"),
    [
        ({"size": 48, "clip": ClipSettings(frames=2, sampling_rate=3)}, 10, 12),  # of 24 frames the clip spans 4
        ({"short_side": 48}, 7, 24),  # as on ImageNet, 256 and 224: the frames as they are, and the central 24
    ],
)
def test_one_crop_and_one_clip(few, settings, first, place):
    listed = extract_features(Pixels(), few, clips(clips=1, crops=1, **settings), CPU)
    for row, record in zip(listed.x, few.records, strict=True):
        with open_video(record.path) as video:
            frame = video.frames([first])[0].transpose(1, 2, 0) / 255
        expected = (frame[place, place] - [0.4, 0.5, 0.6]) / [0.2, 0.25, 0.3]
        np.testing.assert_allclose(row[:3].numpy(), expected, atol=1e-5)
    with pytest.raises(ConfigError, match="short_side 23 is less than size 24"):
        clips(short_side=23).dataset(few)


def test_bfloat16_is_of_the_forward_pass_alone(few, backbone):
    """One view of a batch is float at a time, and sums over views are float32."""
    settings = {"clips": 2, "crops": 3, "batch_size": 5}
    seen = []

    class Watched(Backbone):
        dim = backbone.dim

        def forward(self, x):
            seen.append((tuple(x.shape), x.dtype, torch.is_autocast_enabled("cpu")))
            return backbone(x)

    plain, half = (
        extract_features(Watched(), few, clips(**settings, precision=name), CPU).x for name in ("float32", "bfloat16")
    )
    seen = [each for each in seen if each[0][0] > 1]  # not the single clip that looks up the sizes of convolutions
    assert seen == [((5, 3, 3, 24, 24), torch.float32, on) for on in (False, True) for _ in range(6)]
    assert plain.dtype == half.dtype == torch.float32 and not torch.equal(plain, half)
    assert torch.nn.functional.cosine_similarity(plain, half).min() > 0.99
    # float32 is bit for bit the sum of the views one after the other
    batch = next(iter(eval_loader(clips(**settings).dataset(few), 5, 0)))
    with torch.no_grad():
        views = to_device(batch, CPU, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)).views
        assert torch.equal(plain, sum(backbone(view) for view in views) / 6)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(few, backbone, training):
    backbone.train(training)
    expected = {key: value.clone() for key, value in backbone.state_dict().items()}
    torch.manual_seed(7)
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = extract_features(backbone, few, clips(clips=1, crops=1, workers=1), CPU)
    assert backbone.training is training
    assert all(module.training is training for module in backbone.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert all(torch.equal(value, expected[key]) for key, value in backbone.state_dict().items())
    backbone.eval()
    again = extract_features(backbone, few, clips(clips=1, crops=1), CPU)  # eval mode was on both times
    torch.testing.assert_close(first.x, again.x, rtol=1e-5, atol=1e-6)
    assert not first.x.requires_grad


@pytest.fixture
def gaps(digits, tmp_path):
    """A list of nine videos of which the first, three in a row, and one that is not there are missing."""
    sources = read_list(digits / "motion/test.csv").records[:9]
    rows = ["path,label"]
    for n, record in enumerate(sources):
        content = Path(record.path).read_bytes()
        if n != 7:
            (tmp_path / f"{n}.mp4").write_bytes(content[:900] if n in (0, 3, 4, 5) else content)
        rows.append(f"{n}.mp4,{record.label}")
    (tmp_path / "gaps.csv").write_text("\n".join(rows) + "\n")
    return read_list(tmp_path / "gaps.csv")


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (3, 2)])
def test_fault_4_allow_missing_gives_features_of_the_others(gaps, digits, batch_size, workers, caplog):
    settings = {"clips": 2, "batch_size": batch_size, "workers": workers}
    features = extract_features(Pixels(), gaps, clips(**settings, allow_missing=True), CPU)
    there = [1, 2, 6, 8]
    assert features.index.tolist() == there
    assert features.label.tolist() == [gaps.records[n].label for n in there]
    whole = extract_features(Pixels(), read_list(digits / "motion/test.csv"), clips(clips=2), CPU)
    torch.testing.assert_close(features.x, whole.x[there], rtol=1e-5, atol=1e-6)
    assert [Path(path).name for path, _ in features.missing] == ["0.mp4", "3.mp4", "4.mp4", "5.mp4", "7.mp4"]
    assert "not a video" in features.missing[0][1] and "No such file" in features.missing[-1][1]
    logged = [record.getMessage() for record in caplog.records]
    named = "; ".join(reason for _, reason in features.missing[:3])
    assert logged == [f"5 videos cannot be read and are left out: {named} and 2 more; vidssl check names all"]
    assert whole.missing == ()
    with pytest.raises(DataError, match=r"^\S+0\.mp4: not a video[^\n]*$"):
        extract_features(Pixels(), gaps, clips(**settings), CPU)


def test_fault_4_nothing_that_can_be_read(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_text("<html>")
    (tmp_path / "list.csv").write_text("path,label\na.mp4,0\nb.mp4,1\n")
    with pytest.raises(DataError, match=r"none of the 2 videos of \S+list\.csv can be read; .*a\.mp4: not a video"):
        extract_features(Pixels(), read_list(tmp_path / "list.csv"), clips(clips=1, allow_missing=True), CPU)


# Parts, and several processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 8])
def test_fault_28_each_video_is_in_one_part(few, backbone, parts):
    settings = clips(clips=1, crops=1, batch_size=2)
    alone = extract_features(backbone, few, settings, CPU)
    features = [extract_features(backbone, few, settings, CPU, rows=range(n, 5, parts)) for n in range(parts)]
    for n, part in enumerate(features):
        assert part.index.tolist() == list(range(n, 5, parts)) and part.x.shape[1] == backbone.dim
        torch.testing.assert_close(part.x, alone.x[n::parts], rtol=0, atol=1e-6)
        assert torch.equal(part.label, alone.label[n::parts])
    assert sorted(row for part in features for row in part.index.tolist()) == list(range(5))


def written(folder, name, videos):
    """Write a list of videos, each a file, or None for a broken one."""
    rows = ["path,label"]
    for n, video in enumerate(videos):
        (folder / f"{name}-{n}.mp4").write_bytes(b"<html>" if video is None else Path(video).read_bytes())
        rows.append(f"{name}-{n}.mp4,{n % 3}")
    (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return str(folder / f"{name}.csv")


def extract_all(cases):
    """In each of several processes: extract the lists one after another, and tell what came of it."""
    torch.manual_seed(0)
    network = build_backbone("resnet3d18", width=8)
    results = {}
    with distributed.joined(CPU):
        for name, (path, allow_missing, shard) in cases.items():
            settings = clips(clips=2, crops=1, batch_size=2, allow_missing=allow_missing)
            videos = read_list(path)
            try:
                features = vars(
                    extract_features(network, videos, settings, CPU, rows=range(shard[0], len(videos), shard[1]))
                )
            except VidsslError as error:
                features = {"error": f"{type(error).__name__}: {error}"}
            results[name] = {**features, "world": distributed.world()}
    return results


@pytest.fixture(scope="module", params=[3])
def together(request, run_world, digits, tmp_path_factory):
    """Lists, each extracted by so many processes: (world, {name: (list, what each process found)})."""
    world, folder = request.param, tmp_path_factory.mktemp("together")
    some = [record.path for record in read_list(digits / "motion/test.csv").records[:9]]
    lists = {f"of-{n}": written(folder, f"of-{n}", some[:n]) for n in (1, 5, 7)}
    lists["gaps"] = written(folder, "gaps", [None if n in (0, 3, 4, 7) else some[n] for n in range(9)])
    # The first process has nothing but missing videos.
    lists["first"] = written(folder, "first", [None if n % world == 0 else some[n] for n in range(world + 1)])
    lists["none"] = written(folder, "none", [None] * 4)
    cases = {name: [path, name in ("gaps", "first", "none"), (0, 1)] for name, path in lists.items()}
    cases["error"] = [lists["gaps"], False, (0, 1)]
    cases["one"] = [written(folder, "one", [*some[:3], None]), False, (0, 1)]  # on one process only
    cases["part"] = [lists["of-7"], False, (1, 3)]  # after the errors, nobody is a step behind
    outcome = run_world(world, extract_all, cases)
    return world, {name: (case[0], [part[name] for part in outcome]) for name, case in cases.items()}


def alone(backbone, path, **settings):
    return extract_features(backbone, read_list(path), clips(clips=2, crops=1, batch_size=2, **settings), CPU)


@pytest.mark.parametrize("name", ["of-1", "of-5", "of-7", "gaps", "first"])
def test_fault_28_each_video_counts_once_on_several_processes(together, backbone, name):
    world, cases = together
    path, actual = cases[name]
    expected = alone(backbone, path, allow_missing=name in ("gaps", "first"))
    for part in actual:  # every process has it all
        assert part["world"] == world
        assert torch.equal(part["index"], expected.index) and torch.equal(part["label"], expected.label)
        torch.testing.assert_close(part["x"], expected.x, rtol=0, atol=1e-6)
        assert part["missing"] == expected.missing
    count = {"gaps": 5, "first": world - 1}.get(name) or int(name[-1])
    assert len(expected.index) == count
    assert count + len(expected.missing) == len(read_list(path).records)


def test_fault_28_a_part_on_several_processes(together, backbone):
    path, actual = together[1]["part"]
    expected = alone(backbone, path)
    for part in actual:
        assert part["index"].tolist() == [1, 4]
        torch.testing.assert_close(part["x"], expected.x[[1, 4]], rtol=0, atol=1e-6)


def test_fault_4_an_error_on_one_process_ends_all(together):
    world, cases = together
    for name, broken in (("error", {0, 3, 4, 7}), ("one", {3})):
        for rank, part in enumerate(cases[name][1]):
            own = bool({n % world for n in broken} & {rank})
            kind = "DataError: " if own else "PeerError: process "
            assert part["error"].startswith(kind) and "not a video" in part["error"]
            assert "\n" not in part["error"]
    assert {part["error"].split(";")[0] for part in cases["none"][1]} == {
        f"DataError: none of the 4 videos of {cases['none'][0]} can be read"
    }


def test_features_do_not_keep_the_memory_of_batches():
    batches = [torch.arange(1000.0).view(-1, 1).repeat(1, 4) + n for n in range(3)]
    columns = _Columns(10)
    assert columns.rows() == []
    for number, batch in enumerate(batches):
        columns.add([torch.tensor([3 * number, 3 * number + 1, 3 * number + 2])[:3], batch[:3]])
    index, x = columns.rows()
    assert index.tolist() == [*range(9)] and torch.equal(x, torch.cat([batch[:3] for batch in batches]))
    assert index.untyped_storage().nbytes() == 10 * 8 and x.untyped_storage().nbytes() == 10 * 4 * 4
