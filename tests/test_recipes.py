"""The settings of the published protocols, read back from the `config.yaml` of runs that the configs start."""

from pathlib import Path

import pytest

from vidssl.engine.run import load_run
from vidssl.engine.train import _write_config, test_clips

ROOT = Path(__file__).parents[1]

# What the recipes say, word by word.
LINEAR = (
    "Linear: 60 epochs, batch 512, SGD 0.9, wd 0, lr 2 x batch/256, warm-up 8 (code) or 35 (paper), cosine, backbone "
    "in eval mode (BN frozen), head init std 0.01. Train: short side 256 (paper) or random 256-320 (code, default), "
    "crop 224, flip."
)
FINETUNE = (
    "Finetune UCF101/HMDB51: 200 epochs, batch 64, SGD 0.9, wd 0, lr 0.1 x batch/256 (= 0.025), no warm-up, cosine, "
    "dropout 0.8, jitter 0.4/0.4/0.4/0.1 p 0.8, flip (code adds gray 0.2), 3 splits. Test: 10 clips at uniform starts "
    "(first at 0, last ends at the video's end) x 3 crops along the longer side at 256²"
)
SEMI = "semi-supervised 1 % / 10 % finetuning (20 epochs, head lr 1.0, backbone 0.01, x0.2 at 12 and 16)"


def words(text):
    return " ".join(text.split())


def test_the_quotations_are_those_of_the_recipes(real):
    recipes = words((real.parent / "recipes.md").read_text(encoding="utf-8"))
    for quotation in (LINEAR, FINETUNE, SEMI):
        assert words(quotation) in recipes


def read_back(name, tmp_path, *overrides, split=None):
    """Bind a config, write the config.yaml of its run, and bind that."""
    run = load_run(ROOT / "configs" / name, [f"output={tmp_path}", *overrides], split)
    Path(run.output).mkdir(exist_ok=True)
    _write_config(run, Path(run.output))
    again = load_run(Path(run.output) / "config.yaml")
    assert again.model_dump(mode="json") == run.model_dump(mode="json")
    return again


def rate(run, epoch):
    """Learning rate at an epoch, as the optimizer gets it."""
    return (
        run.optimizer.lr.at(epoch / run.epochs)
        * run.batch_size
        / (run.optimizer.base_batch or run.batch_size)
    )


def assert_thirty_crops(run):
    test = test_clips(run)
    assert (test.clips, test.crops, test.size) == (10, 3, 256)
    assert (test.clip.frames, test.clip.seconds) == (8, 2.56)


@pytest.mark.parametrize("data", ["ucf101", "hmdb51"])
@pytest.mark.parametrize("arch", ["r18", "r50"])
@pytest.mark.parametrize("split", [1, 2, 3])
def test_finetuning(data, arch, split, tmp_path):
    run = read_back(f"finetune/{data}_{arch}.yaml", tmp_path, "init=pretrained.pt", split=split)
    assert (run.epochs, run.batch_size) == (200, 64)
    assert (run.optimizer.name, run.optimizer.sgd_momentum, run.optimizer.weight_decay) == ("sgd", 0.9, 0)
    assert run.optimizer.backbone_scale == 1
    assert rate(run, 0) == pytest.approx(0.025)  # no warm-up
    assert rate(run, 100) == pytest.approx(0.0125) and rate(run, 50) == pytest.approx(
        0.025 * (1 + 2**-0.5) / 2
    )
    assert rate(run, 200) == pytest.approx(0)
    assert run.method.dropout == 0.8 and not run.method.freeze and run.init.file == "pretrained.pt"
    assert run.method.classes == {"ucf101": 101, "hmdb51": 51}[data]
    assert run.backbone.name == {"r18": "resnet3d18", "r50": "resnet3d50"}[arch]
    (view,) = run.data.views
    assert view.ranges == pytest.approx((0.4, 0.4, 0.4, 0.1)) and view.jitter_probability == 0.8
    assert (view.gray_probability, view.flip_probability) == (0.2, 0.5)
    assert (view.size, view.short_side) == (224, (256, 320))
    assert run.data.train.endswith(f"train{split}.csv") and run.evaluate.query.endswith(f"test{split}.csv")
    assert_thirty_crops(run)


@pytest.mark.parametrize("name", ["k200_r18", "k400_r18", "k400_r50", "k400_r50_paper"])
def test_linear_probe(name, tmp_path):
    run = read_back(f"linear/{name}.yaml", tmp_path)
    paper = name.endswith("_paper")
    assert (run.epochs, run.batch_size) == (60, 512)
    assert (run.optimizer.name, run.optimizer.sgd_momentum, run.optimizer.weight_decay) == ("sgd", 0.9, 0)
    warmup = 35 if paper else 8
    assert rate(run, 0) == 0 and rate(run, warmup) == pytest.approx(4.0, rel=1e-3)  # 2 x 512 / 256
    assert rate(run, warmup / 2) == pytest.approx(2.0, rel=1e-3)
    assert rate(run, (warmup + 60) / 2) == pytest.approx(2.0, rel=1e-3) and rate(run, 60) == pytest.approx(0)
    assert run.method.freeze and run.method.dropout == 0
    (view,) = run.data.views
    assert view.short_side == ((256, 256) if paper else (256, 320))
    assert (view.size, view.flip_probability, view.color, view.gray_probability) == (224, 0.5, 0, 0)
    assert_thirty_crops(run)


@pytest.mark.parametrize("share", [1, 10])
def test_semi_supervised(share, tmp_path):
    run = read_back(f"finetune/semi_{share}.yaml", tmp_path)
    assert (run.epochs, run.data.subset.share) == (20, share / 100)
    assert [rate(run, epoch) for epoch in (0, 11.9, 12, 15.9, 16, 20)] == pytest.approx(
        [1, 1, 0.2, 0.2, 0.04, 0.04]
    )
    assert run.optimizer.backbone_scale == 0.01 and not run.method.freeze


def test_the_papers_text_is_two_overrides_away(tmp_path):
    """As the header of the configs says."""
    overrides = ["data.views.0.gray_probability=0.0", "data.views.0.short_side=[256, 256]"]
    run = read_back("finetune/ucf101_r18.yaml", tmp_path, *overrides, split=1)
    assert (run.data.views[0].gray_probability, run.data.views[0].short_side) == (0.0, (256, 256))
    header = (ROOT / "configs/finetune/ucf101_r18.yaml").read_text(encoding="utf-8")
    assert all(override in header for override in overrides)
