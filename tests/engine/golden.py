"""Losses of the toy configs, by the command that renews them: `python tests/engine/golden.py [NAME ...]`.

Renew them where a change is meant to change numbers, and say so in the change.
"""

import json
import runpy
import sys
import tempfile
from pathlib import Path

import torch

from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

ROOT = Path(__file__).parents[2]
PLACES = runpy.run_path(str(ROOT / "tests" / "toys.py"))
TOYS = PLACES["TOYS"]


def golden_file(name: str) -> Path:
    """Where the losses of a toy config are kept."""
    return ROOT / "tests" / "golden" / f"{name}.json"


def losses(name: str, folder: Path) -> list[float]:
    """Train a toy config in a folder and give the loss of each step; data that lie there are used again."""
    where = PLACES["placed"](name, folder / "data", folder / "golden" / name)
    run = load_run(PLACES["CONFIGS"] / f"{name}.yaml", [*where, "seed=0", "log_every=1", "checkpoint.keep=3"])
    train(run)
    return logged_losses(Path(run.output))


def logged_losses(output: Path) -> list[float]:
    """The losses that a run logged."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def main() -> None:
    """Write the losses of all toy configs, or of those that are named."""
    torch.set_num_threads(1)  # as the tests do
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or TOYS:
            path = golden_file(name)
            path.parent.mkdir(exist_ok=True)
            values = [round(value, 6) for value in losses(name, Path(folder))]
            path.write_text(json.dumps({"config": f"configs/toy/{name}.yaml", "loss": values}, indent=1) + "\n")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
