"""The headers of the papers' configs state the costs that `benchmarks/costs.py` computes."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # where `scaling` is
COSTS = runpy.run_path(str(ROOT / "benchmarks" / "costs.py"))
sys.path.pop(0)
CONFIGS = [f"configs/{path.parent.name}/{path.name}" for path in (ROOT / "configs").glob("*/*.yaml")]
OTHERS = r"configs/(demo|detection|studies|toy)/|.*(small|convnet_lstm|view_learning)"


def test_headers_state_the_computed_costs(check_all):
    def check(config):
        text = COSTS["stated"](config)
        if COSTS["computed"](config):
            assert text.startswith(f"{COSTS['cost'](config)}. ") and COSTS["WHERE"] in text
        else:
            assert re.match(OTHERS, config)

    check_all(check, {config: (config,) for config in CONFIGS})


@pytest.mark.long
def test_headers_state_the_computed_memory():
    for config in filter(COSTS["computed"], CONFIGS):
        assert f" {COSTS['memory'](config)} " in COSTS["stated"](config), config


@pytest.mark.parametrize(
    ("config", "seconds"),
    [  # views over views per second, of 4 passes each; frozen: one pass; JigSaw: 9 patches of 64² without a target
        ("pretrain/sce_r3d50_k400", 200 * 216_000 * 2 / 238),
        ("linear/k400_r18_16x112", 60 * 216_000 / 4 / 1358),
        ("pretrain/infomin_r3d50_k400", 200 * 216_000 * (2 + 9 * 64**2 / 224**2 * 3 / 4) / 238),
        ("finetune/ucf101", 200 * 9_537 * 3 / 4 / 238),
    ],
)
def test_hours_are_views_over_views_per_second(config, seconds):
    assert COSTS["hours"](f"configs/{config}.yaml")[0] == pytest.approx(seconds / 3600, rel=0.01)
