"""InterCLR's global clustering before training (`inter.initial`): its rows, what it leaves alone, when it runs."""

import runpy
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import vidssl
from vidssl.base import distributed
from vidssl.base.errors import DataError
from vidssl.data.clip_samplers import Center
from vidssl.data.video_list import read_list
from vidssl.engine.periodic_evaluation import encode_list
from vidssl.engine.run_config import load_run
from vidssl.engine.run_setup import Training
from vidssl.engine.train import train
from vidssl.transforms import center_crop

EQUAL = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))
TOYS = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))
NAMES = ("interclr_moco", "interclr_npid", "interclr_byol")
INITIAL = "method.inter.initial=true"
OWN = ("bank.", "branches.inter.")  # the state that the clustering writes


def snapshot(method):
    return {key: value.clone() if torch.is_tensor(value) else value for key, value in method.state_dict().items()}


def started(run):
    """The method of a fresh run: its state before and after it has begun, and itself."""
    with ExitStack() as stack:
        t = Training(run, None, stack)
        before, rng = snapshot(t.method), torch.get_rng_state()
        t.method.begin(partial(encode_list, run, t.videos, t.device, t.request))
        assert torch.equal(torch.get_rng_state(), rng) and all(m.training for m in t.method.modules())
        return before, snapshot(t.method), t.method


def by_hand(method, run):
    """Unit embeddings of the central clip and crop of each video, one video at a time."""
    network = getattr(method, "target", None) or torch.nn.Sequential(method.backbone, method.projector)
    sampler = Center(Center.Config(frames=4, seconds=0.6))
    rows = []
    for record in read_list(run.data.train).records:
        with vidssl.open_video(record.path) as video:
            (clip,) = sampler(video.meta, [])
            frames = center_crop(video.frames(clip.indices), 32).frames
        x = (torch.from_numpy(frames.copy()).float().div(255) - 0.45) / 0.225
        with torch.no_grad():
            rows.append(network(x.transpose(0, 1)[None]))
    return normalize(torch.cat(rows), dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_initial_network_and_nothing_else_changes(name, toy_run):
    run = toy_run(name, "a", INITIAL)
    before, after, method = started(run)
    changed = {key for key in before if torch.is_tensor(before[key]) and not torch.equal(before[key], after[key])}
    assert changed and all(key.startswith(OWN) for key in changed)
    inter = method.branches["inter"]
    assert inter.bank.seen.all() and inter.get_extra_state() == {"taken": 40, "fits": 1}
    rows = inter.bank.rows.clone()
    torch.testing.assert_close(rows, by_hand(method.eval(), run), rtol=0, atol=1e-5)
    for cluster in range(6):
        members = rows[inter.clusters.labels == cluster].double()
        torch.testing.assert_close(inter.clusters.centroids[cluster], members.mean(dim=0))


@pytest.mark.parametrize("name", NAMES[:1])
def test_the_loss_has_the_branch_from_the_first_step_on(name, toy_run, metrics):
    for output, more, first in (("a", [INITIAL], 1), ("b", [], 6)):
        train(toy_run(name, output, *more, "steps=7", "checkpoint.every=20"))
        assert [line["step"] for line in metrics(output) if "inter_loss" in line] == list(range(first, 8))


def test_online_clusters_go_on_as_the_means_of_their_rows(toy_run):
    state = torch.load(train(toy_run("interclr_moco", "a", INITIAL, "steps=3")), weights_only=True)["method"]
    rows, labels = state["branches.inter.bank.rows"].double(), state["branches.inter.clusters.labels"]
    for cluster, sums in enumerate(state["branches.inter.clusters.sums"]):
        torch.testing.assert_close(sums, rows[labels == cluster].sum(dim=0), rtol=0, atol=1e-9)


def whole(path):
    content = torch.load(path, weights_only=True)
    return {key: value for key, value in content.items() if key not in ("config", "evaluated")}


@pytest.mark.parametrize("name", ["interclr_npid"])
def test_a_resumed_run_does_not_repeat_it(name, toy_run, monkeypatch):
    straight = whole(train(toy_run(name, "straight", INITIAL, "steps=6")))
    parts = toy_run(name, "parts", INITIAL, "steps=6")
    train(parts, 2)
    monkeypatch.setattr("vidssl.engine.periodic_evaluation.encode_videos", None)
    EQUAL["same"](whole(train(parts)), straight)


def with_broken(run, tmp_path, broken):
    """The list of a run, with files that are no videos in some rows."""
    videos = read_list(run.data.train)
    rows = [tmp_path / f"{n}.mp4" if n in broken else record.path for n, record in enumerate(videos.records)]
    for n in broken:
        rows[n].write_bytes(b"not a video")
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"{row}\n" for row in rows))
    return f"data.train={tmp_path}/list.csv", "data.allow_external=true", "data.max_broken=1.0"


def test_broken_videos_stay_unseen(toy_run, tmp_path, caplog):
    broken_run = with_broken(toy_run("interclr_moco", "x"), tmp_path, {3, 17})
    inter = started(toy_run("interclr_moco", "a", INITIAL, *broken_run))[2].branches["inter"]
    for unseen in (~inter.bank.seen, inter.clusters.labels == -1):
        assert torch.nonzero(unseen).flatten().tolist() == [3, 17]
    assert caplog.text.count("2 videos cannot be read and are left out") == 1
    train(toy_run("interclr_moco", "b", INITIAL, *broken_run, "steps=6"))


def test_a_list_without_any_video_is_refused(toy_run, tmp_path):
    broken_run = with_broken(toy_run("interclr_moco", "x"), tmp_path, range(40))
    with pytest.raises(DataError, match=r"^none of the 40 videos of \S+ can be read; the first: "):
        train(toy_run("interclr_moco", "a", INITIAL, *broken_run))


def begun(name, data, output):
    """Rows, labels and sums of a process."""
    with distributed.joined(torch.device("cpu")):
        where = [*TOYS["placed"](name, data, output), INITIAL]
        inter = started(load_run(TOYS["CONFIGS"] / f"{name}.yaml", where))[2].branches["inter"]
        return inter.bank.rows, inter.clusters.labels, inter.clusters.sums


@pytest.mark.parametrize("name", ["interclr_npid"])
def test_two_processes_are_one(name, run_world, digits, tmp_path):
    expected = begun(name, digits, tmp_path / "one")
    one, two = run_world(2, begun, name, digits, tmp_path / "two")
    EQUAL["same"](one, two)
    torch.testing.assert_close(one[0], expected[0], rtol=0, atol=1e-6)
    assert torch.equal(one[1], expected[1])
    torch.testing.assert_close(one[2], expected[2], rtol=0, atol=1e-5)
