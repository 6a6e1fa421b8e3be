"""The toy configs, and where tests put them; test files load it by its path."""

from pathlib import Path

from vidssl.base.config import read

CONFIGS = Path(__file__).parents[1] / "configs" / "toy"
# Each method has at least one, of its name; variants lie beside it. All that tests methods goes over this list.
TOYS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def placed(name, data, output):
    """Overrides that let a toy read the set rendered in `data`, and write to `output`, on a CPU without workers."""
    options = read(CONFIGS / f"{name}.yaml")["data"]
    train = Path(options["train"]).relative_to(options["moving_digits"]["out"])
    return [
        f"data.moving_digits.out={data}",
        f"data.train={data}/{train}",
        f"output={output}",
        "device=cpu",
        "data.workers=0",
    ]
