"""kill -9 at random moments of a save, for real: a process that saves and saves is shot, and what it left is read."""

import json

# Forks one saver after the other: that is milliseconds, where a new process is seconds.
DRIVER = """
import json, mmap, os, signal, struct, sys, time
from pathlib import Path
import numpy as np
import torch
from vidssl.engine import checkpoint
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT

torch.set_num_threads(1)
# What the saver is at: the number of its save, whether it is inside of it, seconds that the last one took.
board = mmap.mmap(-1, 24)
put = lambda *values: board.__setitem__(slice(0, 24), struct.pack("qqd", *values))
look = lambda: struct.unpack("qqd", board[:24])
value = lambda content: int(content["method"]["w"][0])

def save(number):
    weights = torch.full((500_000,), float(number))
    step = 7 if same else number
    content = {"format": CHECKPOINT_FORMAT, "step": step, "method": {"w": weights}}
    content["config"] = {"backbone": {"name": "resnet3d18"}}
    checkpoint.write_checkpoint(folder, step, content, keep=2)

def saver(number):
    while True:
        put(number, 1, look()[2])
        start = time.perf_counter()
        save(number)
        put(number, 0, time.perf_counter() - start)
        number += 1

def names(numbers):
    steps = sorted({7 if same else n for n in numbers})
    return sorted(["last.pt", *(f"step-{n:08d}.{s}" for n in steps for s in ("pt", "sha256"))])

def shoot(kills):
    save(1)
    save(2)
    done, inside, tries, seen = 2, 0, 0, {"temporary": 0, "two hashes": 0, "orphan": 0, "complete": 0}
    moments = np.random.Generator(np.random.PCG64(3))
    while inside < kills:
        tries += 1
        assert tries < 20 * kills, f"only {inside} of {tries} kills were inside of a save"
        put(done + 1, 0, 0.0)
        child = os.fork()
        if not child:
            try:
                saver(done + 1)
            finally:
                os._exit(1)
        while not look()[2]:  # let it finish one, and see how long it takes
            time.sleep(0.0005)
        time.sleep(look()[2] * moments.uniform(0, 2))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        number, busy, _ = look()
        finished = number - busy
        inside += busy
        left = [path.name for path in folder.iterdir()]
        seen["temporary"] += any(name.endswith(".tmp") for name in left)
        seen["two hashes"] += any(len(path.read_text().split()) > 1 for path in folder.glob("*.sha256"))
        seen["orphan"] += any(not path.with_suffix(".pt").exists() for path in folder.glob("*.sha256"))

        assert not any(path.name.endswith(".tmp") for path in checkpoint.saved(folder))
        found = checkpoint.newest_valid(folder)
        assert value(found) in (finished, number), (value(found), finished, number)
        assert torch.equal(found["method"]["w"], torch.full((500_000,), float(value(found))))
        seen["complete"] += busy and value(found) == number
        for path in checkpoint.saved(folder):
            checkpoint.check_checkpoint(path)  # not only the newest: nothing that has its name is torn
        checkpoint.check_checkpoint(folder / "last.pt")
        pointed = value(torch.load(folder / "last.pt", weights_only=True))
        assert pointed in (value(found), finished), (pointed, value(found), finished)

        done = value(found) + 1
        save(done)
        assert sorted(path.name for path in folder.iterdir()) == names([done - 1, done]), left
    return seen

for same, kills in ((False, 50), (True, 20)):
    folder = Path(sys.argv[1]) / str(same)
    print(json.dumps(shoot(kills)))
"""


def test_fault_16_kills_inside_of_a_save(run_script, tmp_path):
    """50 while each save is of a new step, 20 while all are of the same and there is only that one file."""
    (tmp_path / "driver.py").write_text(DRIVER)
    status, out, err = run_script(tmp_path / "driver.py", tmp_path / "runs", cwd=tmp_path)
    assert status == 0, err
    for line in out.splitlines():
        seen = json.loads(line)
        assert seen["temporary"] > 5  # in the middle of writing, not only between files
    assert len(out.splitlines()) == 2 and "Traceback" not in err and "falling back" not in err
