"""The settings of the published protocols, read back from the `config.yaml` of runs that the configs start."""

from pathlib import Path

import pytest

from vidssl.base.config import dump
from vidssl.base.errors import ConfigError
from vidssl.engine.periodic_evaluation import evaluation_clips
from vidssl.engine.run_config import load_run

ROOT = Path(__file__).parents[1]


def read_back(name, tmp_path, *overrides, split=None):
    """Bind a config, write the config.yaml of its run, and bind that."""
    run = load_run(ROOT / "configs" / name, [f"output={tmp_path}", *overrides], split)
    Path(run.output).mkdir(exist_ok=True)
    (Path(run.output) / "config.yaml").write_text(dump(run), encoding="utf-8")
    again = load_run(Path(run.output) / "config.yaml")
    assert again.model_dump(mode="json") == run.model_dump(mode="json")
    return again


def rate(run, epoch):
    """Learning rate at an epoch, as the optimizer gets it."""
    return run.optimizer.lr.at(epoch / run.epochs) * run.batch_size / (run.optimizer.base_batch or run.batch_size)


def assert_thirty_crops(run):
    test = evaluation_clips(run)
    assert (test.clips, test.crops, test.size) == (10, 3, 256)
    assert (test.clip.frames, test.clip.seconds) == (8, 2.56)


@pytest.mark.parametrize("data", ["ucf101", "hmdb51"])
@pytest.mark.parametrize("backbone", ["resnet3d18", "resnet3d50"])
@pytest.mark.parametrize("split", [1, 2, 3])
def test_finetuning(data, backbone, split, tmp_path):
    settings = ["init=pretrained.pt", f"backbone.name={backbone}"]
    run = read_back(f"finetune/{data}.yaml", tmp_path, *settings, split=split)
    assert (run.epochs, run.batch_size) == (200, 64)
    assert (run.optimizer.name, run.optimizer.sgd_momentum, run.optimizer.weight_decay) == ("sgd", 0.9, 0)
    assert run.optimizer.backbone_scale == 1
    assert rate(run, 0) == pytest.approx(0.025)  # no warm-up
    assert rate(run, 100) == pytest.approx(0.0125) and rate(run, 50) == pytest.approx(0.025 * (1 + 2**-0.5) / 2)
    assert rate(run, 200) == pytest.approx(0)
    assert run.method.dropout == 0.8 and not run.method.freeze and run.init.file == "pretrained.pt"
    assert run.method.classes == {"ucf101": 101, "hmdb51": 51}[data]
    assert run.backbone.name == backbone
    (view,) = run.data.views
    assert view.ranges == pytest.approx((0.4, 0.4, 0.4, 0.1)) and view.jitter_probability == 0.8
    assert (view.gray_probability, view.flip_probability) == (0.2, 0.5)
    assert (view.size, view.short_side) == (224, (256, 320))
    assert run.data.train.endswith(f"train{split}.csv") and run.evaluate.query.endswith(f"test{split}.csv")
    assert_thirty_crops(run)


@pytest.mark.parametrize("paper", [False, True])
def test_linear_probe(paper, tmp_path):
    text = ["optimizer.lr.warmup=0.58333", "data.views.0.short_side=[256, 256]"]  # as the header of the config says
    assert all(setting in (ROOT / "configs/linear/k400.yaml").read_text(encoding="utf-8") for setting in text)
    run = read_back("linear/k400.yaml", tmp_path, *(text if paper else []))
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


def test_semi_supervised(tmp_path):
    run = read_back("finetune/semi.yaml", tmp_path)
    assert (run.epochs, run.data.subset.fraction) == (20, 0.01)
    assert [rate(run, epoch) for epoch in (0, 11.9, 12, 15.9, 16, 20)] == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])
    assert run.optimizer.backbone_scale == 0.01 and not run.method.freeze


def test_the_papers_text_is_two_overrides_away(tmp_path):
    """As the header of the configs says."""
    overrides = ["data.views.0.gray_probability=0.0", "data.views.0.short_side=[256, 256]"]
    run = read_back("finetune/ucf101.yaml", tmp_path, *overrides, split=1)
    assert (run.data.views[0].gray_probability, run.data.views[0].short_side) == (0.0, (256, 256))
    header = (ROOT / "configs/finetune/ucf101.yaml").read_text(encoding="utf-8")
    assert all(override in header for override in overrides)


# Learning rates at epochs, of the papers: SCE (Denize et al., 2023) D.1 and D.2, InterCLR (Xie et al., 2021) B, InfoMin
# (Tian et al., 2020) C.2 with the milestones of its code.
PROBES = {
    "imagenet_r50": (90, 1024, 0, {0: 0.4, 45: 0.2, 90: 0}, 0.08),
    "imagenet_r50_moco": (100, 256, 0, {0: 30, 59.9: 30, 60: 3, 79.9: 3, 80: 0.3, 100: 0.3}, 0.08),
    "imagenet_r50_interclr": (
        100,
        256,
        1e-4,
        {0: 0.01, 29.9: 0.01, 30: 1e-3, 59.9: 1e-3, 60: 1e-4, 89.9: 1e-4, 90: 1e-5},
        0.08,
    ),
    "imagenet_r50_infomin": (60, 256, 0, {0: 30, 29.9: 30, 30.1: 6, 39.9: 6, 40.1: 1.2, 49.9: 1.2, 50.1: 0.24}, 0.2),
}


@pytest.mark.parametrize("name", PROBES)
def test_linear_probes_of_imagenet(name, tmp_path):
    epochs, batch_size, decay, rates, area = PROBES[name]
    run = read_back(f"linear/{name}.yaml", tmp_path)
    assert (run.epochs, run.batch_size) == (epochs, batch_size)
    assert {epoch: rate(run, epoch) for epoch in rates} == pytest.approx(rates)
    optimizer = run.optimizer
    assert (optimizer.name, optimizer.sgd_momentum, optimizer.weight_decay) == ("sgd", 0.9, decay)
    assert run.method.freeze and run.method.classes == 1000 and run.method.dropout == 0
    (view,) = run.data.views
    assert (view.size, view.area, view.flip_probability) == (224, (area, 1.0), 0.5)
    assert (view.jitter_probability, view.gray_probability, view.blur_probability) == (0, 0, 0)
    test = evaluation_clips(run)
    assert (test.clips, test.crops, test.size, test.short_side) == (1, 1, 224, 256)


def test_linear_probe_of_cifar(tmp_path):
    run = read_back("linear/cifar10_r18.yaml", tmp_path)
    rates = {0: 30, 59.9: 30, 60: 3, 80: 0.3}
    assert run.epochs == 100 and {epoch: rate(run, epoch) for epoch in rates} == pytest.approx(rates)
    (view,) = run.data.views
    assert (view.size, view.short_side, view.padding, view.flip_probability) == (32, (32, 32), 4, 0.5)


def test_infomin(tmp_path):
    """The head and the views of PyContrast's InfoMin."""
    run = read_back("pretrain/infomin_r50_imagenet.yaml", tmp_path)
    jigsaw = run.method.jigsaw
    assert (jigsaw.grid, jigsaw.weight, jigsaw.head, jigsaw.view) == (3, 0.5, "mlp", 2)
    assert run.method.key_views == (1,) and run.method.temperature.start == 0.15
    one, other, cut = run.data.views
    assert one == other
    assert (one.size, one.area, one.ranges) == (224, (0.2, 1.0), (0.8, 0.8, 0.8, 0.2))
    assert (one.operations, one.magnitude, one.operation_probability) == (2, 30, 0.5)
    assert (cut.size, cut.area, cut.flip_probability, cut.operations) == (255, (0.6, 1.0), 0.5, 0)
    assert (cut.jitter_probability, cut.gray_probability, cut.blur_probability) == (0, 0, 0)


@pytest.mark.parametrize("name", ["moco", "npid", "ressl", "infomin", "interclr_byol", "sce"])
def test_images_are_tested_as_the_papers_do(name, tmp_path):
    test = evaluation_clips(read_back(f"pretrain/{name}_r50_imagenet.yaml", tmp_path))
    assert (test.clips, test.crops, test.size, test.short_side, test.precision) == (1, 1, 224, 256, "float32")


@pytest.mark.parametrize("size", [257, 300])
def test_a_test_crop_larger_than_its_short_side_is_refused(size, tmp_path):
    with pytest.raises(ConfigError, match=f"short_side 256 is less than size {size}"):
        load_run(ROOT / "configs/linear/imagenet_r50.yaml", [f"output={tmp_path}", f"evaluate.size={size}"])
