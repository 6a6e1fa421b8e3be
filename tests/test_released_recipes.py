"""Configs whose settings are those of released code, against numbers that the released code computes.

Those on video are of Feichtenhofer et al. (2021): configs/contrastive_ssl and slowfast/utils/lr_policy.py of the
SlowFast code, with 8 nodes of 64 videos each. Its learning rate is `BASE_LR x 8` along a cosine over 200 epochs, from
epoch 0 on (`COSINE_AFTER_WARMUP: False`); until epoch 35 a line from `WARMUP_START_LR x 8`, 0.008, to that cosine's
value. The frames are `linspace(0, 8 * 8 / 30 * fps - 1, 8)`, rounded down (slowfast/datasets/decoder.py).
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from vidssl.apps.detection.config import bind_run
from vidssl.base.config import build, read
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Batch, VideoMeta
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.engine.optim import build_optimizer, set_lr
from vidssl.engine.run_config import load_run
from vidssl.methods import METHODS
from vidssl.models import Head
from vidssl.models.backbones import Backbone

PRETRAIN = Path(__file__).parents[1] / "configs" / "pretrain"

EPOCHS = (0, 10, 35, 100, 199)
RELEASED_LR = {  # with BASE_LR 0.1, 0.6 and 1.2, at EPOCHS
    0.1: (0.008, 0.2174446, 0.7410561, 0.4, 4.934701e-05),
    0.6: (0.008, 1.276096, 4.446336, 2.4, 0.000296082),
    1.2: (0.008, 2.546478, 8.892673, 4.8, 0.0005921641),
}
# BASE_LR; and how many queries' losses the released code adds where this code takes their mean. LARS scales matrices
# by the norms of their gradients: there the number changes nothing, and the released rate is taken as it is.
CONFIGS = {
    "moco_r3d50_k400": (0.1, 2),
    "moco_four_clips_r3d50_k400": (0.1, 4),
    "infomin_r3d50_k400": (0.1, 2),
    "interclr_moco_r3d18_k400": (0.1, 2),
    "byol_r3d50_k400": (0.6, 1),
    "byol_four_clips_r3d50_k400": (1.2, 1),
    "simclr_r3d50_k400": (1.2, 1),
    "swav_r3d50_k400": (0.6, 1),
}
FRAMES = {25: [0, 7, 14, 22, 29, 37, 44, 52], 30: [0, 9, 18, 27, 36, 45, 54, 63]}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_learning_rate_is_the_released_one(name):
    run = load_run(PRETRAIN / f"{name}.yaml")
    base, queries = CONFIGS[name]
    assert (run.epochs, run.batch_size) == (200, 512)
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "scale": 1.0}], lr=0.0)
    rates = [set_lr(optimizer, run.optimizer, epoch / 200, run.batch_size) for epoch in EPOCHS]
    assert rates == pytest.approx([lr * queries for lr in RELEASED_LR[base]], rel=1e-6)


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"interclr_moco_r3d18_k400"}))  # SCE's clips there
@pytest.mark.parametrize("fps", FRAMES)
def test_the_frames_are_the_released_ones(name, fps):
    sampler = build(SAMPLERS, load_run(PRETRAIN / f"{name}.yaml").data.sampler)
    clips = sampler(VideoMeta(fps * 10, float(fps), 240, 320), [generator(0, n) for n in range(3)])
    assert len({clip.first for clip in clips}) == 3
    assert [(clip.indices - clip.first).tolist() for clip in clips] == [FRAMES[fps]] * 3


def test_the_learning_rate_on_ava_is_the_released_one():
    """finetune_ava_Slow_R50: 0.3 x (1, 0.1, 0.01, 0.001) from epochs 0, 16, 24, 28; a line from 0.0005 to epoch 5.3."""
    path = PRETRAIN.parent / "detection" / "ava.yaml"
    run = bind_run(read(path), str(path))
    assert (run.epochs, run.batch_size) == (32, 64)
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "scale": 1.0}], lr=0.0)
    rates = [set_lr(optimizer, run.optimizer, epoch / 32, 64) for epoch in (0, 2.65, 5.3, 15.9, 16, 23.9, 24, 28, 31.9)]
    assert rates == pytest.approx([0.0005, 0.15025, 0.3, 0.3, 0.03, 0.03, 0.003, 0.0003, 0.0003], rel=1e-6)


def test_the_learning_rate_of_supcon_is_the_released_one():
    """SupContrast's util.py: 0.5 along a cosine to 0.0005, and 10 of 1,000 epochs of warm-up from 0.01 to its value.

    Its loss is that of the paper times 0.1 / 0.07: the rates here are larger by that, and the decay is smaller.
    """
    run = load_run(PRETRAIN / "supcon_r50_cifar10.yaml")
    assert (run.epochs, run.batch_size, run.optimizer.base_batch) == (1000, 1024, None)
    rates = [run.optimizer.lr.at(epoch / 1000) for epoch in (0, 5, 10, 500, 999)]
    released = [0.01, 0.2549384, 0.4998768, 0.25025, 0.0005012325]
    assert rates == pytest.approx([lr * 0.1 / 0.07 for lr in released], rel=1e-5)
    assert run.optimizer.weight_decay == pytest.approx(1e-4 * 0.07 / 0.1)


class Tiny(Backbone):
    dim = 4

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(x.mean(dim=(2, 3, 4))))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_optimizer_is_the_released_one(name):
    """SOLVER.NESTEROV True; BN.WEIGHT_DECAY 0.0, while biases of other layers decay with SGD."""
    config = load_run(PRETRAIN / f"{name}.yaml").optimizer
    assert config.nesterov and config.sgd_momentum == 0.9
    # With SGD a loss that is n times smaller and a rate that is n times larger need a decay that is n times smaller.
    decayed = 1e-4 / CONFIGS[name][1] if config.name == "sgd" else 1e-6
    assert config.weight_decay == decayed
    if config.name == "sgd":
        network = Tiny()
        decay = {
            id(p): group["weight_decay"]
            for group in build_optimizer(config, network).param_groups
            for p in group["params"]
        }
        actual = {key: decay[id(p)] for key, p in network.named_parameters()}
        assert actual == {"layer.weight": decayed, "layer.bias": decayed, "norm.weight": 0.0, "norm.bias": 0.0}


@pytest.mark.parametrize("name", ["moco_r3d50_k400", "moco_four_clips_r3d50_k400"])
def test_steps_of_moco_are_the_released_ones(name):
    """Released: one backward pass a query, of the mean over its keys; the gradients add, and decay is not among them.

    At epoch 100, where the released rate is 0.4; the target stands still.
    """
    run = load_run(PRETRAIN / f"{name}.yaml")
    queries = len(run.method.key_views)
    assert queries == len(run.data.views) == CONFIGS[name][1]
    torch.manual_seed(0)
    head = Head(layers=2, hidden=6, out=4, norm="none")
    config = METHODS["moco"].Config(projector=head, queue=16, key_views=run.method.key_views)
    method = METHODS["moco"](config, Tiny()).double().eval()
    released = copy.deepcopy(method)
    views = tuple(torch.randn(5, 3, 2, 4, 4).double() for _ in range(queries))
    data = Batch(views, torch.zeros(5, dtype=torch.int64), torch.arange(5))

    ours = build_optimizer(run.optimizer, method)
    set_lr(ours, run.optimizer, 0.5, run.batch_size)
    norm = released.backbone.norm
    rest = [released.backbone.layer, released.projector]
    groups = [
        {"params": norm.parameters(), "weight_decay": 0.0},
        {"params": [p for part in rest for p in part.parameters()], "weight_decay": 1e-4},
    ]
    theirs = torch.optim.SGD(groups, lr=0.4, momentum=0.9, nesterov=True)
    for _ in range(3):
        method(data)["loss"].backward()
        keys = [nn.functional.normalize(released.target(view), dim=1).detach() for view in views]
        for number, view in enumerate(views):
            query = nn.functional.normalize(released.projector(released.backbone(view)), dim=1)
            others = [key for other, key in enumerate(keys) if other != number]
            positive = torch.cat([(query * key).sum(dim=1, keepdim=True) for key in others])
            negatives = (query @ released.queue.keys.T).repeat(len(others), 1)
            logits = torch.cat([positive, negatives], dim=1) / 0.1
            nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64)).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(method.parameters(), released.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_swav_is_the_released_one():
    """SwAV_Slow_R50_8x8: 2 clips, NUM_MLP_LAYERS 3, BN_MLP True, DIM 128, T 0.1; contrastive.py: 1,000 prototypes."""
    run = load_run(PRETRAIN / "swav_r3d50_k400.yaml")
    assert (len(run.data.views), run.method) == (2, load_run(PRETRAIN / "swav_three_clips_r3d50_k400.yaml").method)
    assert run.method.model_dump() == {"name": "swav", **METHODS["swav"].Config().model_dump()}
    assert run.method.projector == Head(layers=3, hidden=2048, out=128, norm="hidden")
    assert (run.method.prototypes, run.method.epsilon, run.method.iterations) == (1000, 0.05, 3)
    assert run.method.temperature.at(0) == run.method.temperature.at(1) == 0.1
    lr = run.optimizer.lr
    assert (lr.start, lr.warmup, lr.warmup_start) == (0.6, 35 / 200, 0.001)
