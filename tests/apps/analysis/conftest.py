from pathlib import Path

import pytest

from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"


@pytest.fixture(scope="session")
def run_folder(digits, made_once):
    """A run of three steps, with all its checkpoints and a classifier of the eight motions."""

    def make(out):
        settings = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
        more = ["steps=3", "checkpoint.every=1", "checkpoint.keep=5", "backbone.zero_init=false"]
        train(load_run(TOY, [*settings, *more, f"output={out}/run"]))

    return made_once("analysed", make) / "run"


@pytest.fixture(scope="session")
def trained(run_folder):
    return str(run_folder / "checkpoints" / "last.pt")
