"""What processes tell one another, and that none is left waiting."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch

from vidssl.base import distributed
from vidssl.base.errors import DataError, Interrupted, PeerError

CPU = torch.device("cpu")


def collectives():
    with distributed.joined(CPU):
        rank, world = distributed.rank(), distributed.world()
        x = torch.arange(6.0).view(3, 2) + 10 * rank
        later = distributed.gather_later(x)
        order = torch.randperm(3 * world, generator=torch.Generator().manual_seed(5))
        return {
            "rank": (rank, world, distributed.local_rank(), distributed.is_main()),
            "gather": distributed.gather(x),
            "later": later(),
            "mean": distributed.mean(x),
            "union": distributed.union(1 << rank),
            "broadcast": distributed.broadcast(torch.tensor([rank + 7])),
            "objects": distributed.gather_objects({"rank": rank}),
            "order": order,
            "exchange": distributed.exchange(x, order),
            "outcomes": distributed.gather_outcomes(lambda: rank * 2),
        }


@pytest.mark.parametrize("world", [1, 3])
def test_collectives_give_all_processes_the_same(world, run_world):
    rows = torch.cat([torch.arange(6.0).view(3, 2) + 10 * rank for rank in range(world)])
    for rank, actual in enumerate(run_world(world, collectives)):
        assert actual["rank"] == (rank, world, rank, rank == 0)
        assert torch.equal(actual["gather"], rows)
        assert torch.equal(actual["later"], rows.view(world, 3, 2))
        torch.testing.assert_close(actual["mean"], rows.view(world, 3, 2).mean(dim=0))
        assert actual["union"] == (1 << world) - 1
        assert actual["broadcast"].item() == 7
        assert actual["objects"] == [{"rank": n} for n in range(world)]
        assert torch.equal(actual["exchange"], rows[actual["order"]][3 * rank : 3 * rank + 3])
        assert actual["outcomes"] == [2 * n for n in range(world)]


def gradients():
    with distributed.joined(CPU):
        part = slice(2 * distributed.rank(), 2 * distributed.rank() + 2) if distributed.world() > 1 else slice(None)
        x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))[part]
        x.requires_grad_()
        every = distributed.gather_with_grad(x)
        loss = (x @ every.T).tanh().sum(dim=1).mean()
        loss.backward()
        return x.grad / distributed.world(), distributed.mean(loss.detach())


def test_gradients_of_gathered_rows_are_those_of_one_process(run_world):
    whole, loss = run_world(1, gradients)[0]
    outcome = run_world(2, gradients)
    # DDP averages: the mean of all losses is what one process would minimise.
    torch.testing.assert_close(torch.cat([gradient for gradient, _ in outcome]), whole)
    torch.testing.assert_close(outcome[0][1], loss)


def failures(kind, call="together", failing=1):
    with distributed.joined(CPU):

        def work():
            if distributed.rank() == failing:
                raise {"error": DataError("clip.mp4 is broken"), "signal": Interrupted(15)}[kind]
            time.sleep(0.3 * distributed.is_main())
            return distributed.rank()

        try:
            return getattr(distributed, call)(work)
        except (DataError, PeerError, Interrupted) as error:
            return type(error).__name__, str(error)


@pytest.mark.parametrize(
    ("kind", "here", "elsewhere"),
    [
        ("error", ("DataError", "clip.mp4 is broken"), ("PeerError", "process 1: clip.mp4 is broken")),
        ("signal", ("Interrupted", "15"), ("Interrupted", "15")),
    ],
)
def test_an_error_on_one_process_is_raised_on_all(kind, here, elsewhere, run_world):
    assert run_world(3, failures, kind) == [elsewhere, here, elsewhere]


def test_others_wait_for_the_main_process_and_return_what_it_does(run_world):
    assert run_world(3, failures, "none", "from_main", None) == [0, 0, 0]
    failed = run_world(2, failures, "error", "from_main", 0)
    assert failed == [("DataError", "clip.mp4 is broken"), ("PeerError", "process 0: clip.mp4 is broken")]


def lost(file):
    try:
        with distributed.joined(CPU):
            if distributed.rank() == 1:
                os._exit(9)
            distributed.gather(torch.zeros(2))
    except PeerError as error:
        file.write_text(str(error))


def test_a_process_that_has_ended_is_reported_in_one_line(start_world, tmp_path):
    world = start_world(2, lost, tmp_path / "given")
    assert world.wait() == [0, 9]
    message = (tmp_path / "given").read_text()
    assert message.startswith("process 0 of 2 lost the others (") and "\n" not in message


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[03-07,11],other", "node03"),
        ("gpu-a,gpu-b", "gpu-a"),
        ("n[1,4]", "n1"),
        ("rack2-n[08-09].cluster", "rack2-n08.cluster"),
    ],
)
def test_srun_needs_no_torchrun(nodes, first):
    step = {
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "16",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
    }
    environment = dict(step)
    distributed.adopt_slurm(environment)
    others = {name: value for name, value in environment.items() if name not in step}
    assert 15000 <= int(others.pop("MASTER_PORT")) < 30000
    assert others == {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": first}
    again = dict(step, MASTER_ADDR="head", MASTER_PORT="1234")
    distributed.adopt_slurm(again)
    assert (again["MASTER_ADDR"], again["MASTER_PORT"]) == ("head", "1234")


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # python in a batch script, without srun
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"RANK": "1", "WORLD_SIZE": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},  # torchrun in a step
    ],
)
def test_where_slurm_variables_are_ignored(environment):
    before = dict(environment)
    distributed.adopt_slurm(environment)
    assert environment == before


def alone(file):
    if os.environ["RANK"] == "1":
        os._exit(9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_MEETING", timedelta(seconds=3))
        try:
            with distributed.joined(CPU):
                pass
        except PeerError as error:
            file.write_text(str(error))


def test_processes_that_never_start_are_reported(start_world, tmp_path):
    assert start_world(2, alone, tmp_path / "given").wait(60) == [0, 9]
    message = (tmp_path / "given").read_text()
    assert message.startswith("process 0 of 2 did not meet the others at 127.0.0.1:") and "\n" not in message


LEAVING = """
import os, torch
from vidssl.base import distributed

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
with distributed.joined(torch.device("cpu")):
    import pytorchvideo.models.resnet
    distributed.gather_objects(distributed.rank())
    inside = threads()
assert inside > before == threads(), (before, inside, threads())
"""


# Process 0 comes late, so that the other could find the address that it had in the group before.
JOINING = """
import os, time, torch
from vidssl.base import distributed

for number in range(3):
    time.sleep(0.5 * (os.environ["RANK"] == "0"))
    with distributed.joined(torch.device("cpu")):
        assert distributed.gather_objects((number, distributed.rank())) == [(number, 0), (number, 1)]
"""


@pytest.mark.long
@pytest.mark.parametrize("script", [LEAVING, JOINING], ids=["keeps none of its threads", "can join another"])
def test_a_process_that_leaves_the_group(script, tmp_path):
    """Its threads would need Python when it has ended; the commands import pytorchvideo inside of the group."""
    (tmp_path / "leave.py").write_text(script)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", tmp_path / "leave.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=120,
    )
