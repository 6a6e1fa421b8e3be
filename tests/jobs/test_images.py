"""A folder of pictures goes the way of videos: listed, trained on, tested."""

import json

import cv2
import numpy as np

import vidssl
from vidssl.apps.prepare.folder import prepare_folder
from vidssl.base.keyed_generators import generator
from vidssl.engine.run_config import bind_run
from vidssl.engine.train import train


def run_on(lists, output, method):
    return bind_run(
        {
            "output": str(output),
            "steps": 3,
            "batch_size": 6,
            "device": "cpu",
            "data": {
                "train": str(lists / "train.csv"),
                "sampler": {"name": "random", "frames": 1, "sampling_rate": 1},
                "views": [{"name": "strong", "size": 16, "blur_kernel": 3}] * 2,
                "workers": 0,
            },
            "backbone": {"name": "resnet18", "stem": "cifar"},
            "method": method,
            "optimizer": {"name": "sgd", "lr": 0.01},
            "evaluate": {"clips": 1, "crops": 1, "batch_size": 4},
            "log_every": 1,
        },
        "test",
    )


def test_pictures_are_listed_trained_on_and_tested(tmp_path):
    method = {"name": "sce", "projector": {"hidden": 16, "out": 8}, "predictor": None, "queue": 20}
    source = generator(0)
    for name, color in (("red", 2), ("blue", 0)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(9):
            picture = source.integers(0, 60, (24, 32, 3), np.uint8)
            picture[..., color] += 180
            assert cv2.imwrite(str(tmp_path / "pictures" / name / f"{number}.png"), picture)
    prepare_folder(tmp_path / "pictures", tmp_path / "lists", images=True)
    last = train(run_on(tmp_path / "lists", tmp_path / "run", method))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    options = {"clips": 1, "crops": 1, "size": 16, "batch_size": 4, "workers": 0, "device": "cpu"}
    lists = tmp_path / "lists"
    out = tmp_path / "test"
    results = vidssl.test(last, lists / "test.csv", out=out, train_list=lists / "train.csv", **options)
    assert results == json.loads((out / "results.json").read_text())
    assert results["missing"] == [] and results["num_videos"] + results["num_train"] == 18
    assert results["R@1"] == 1.0  # red and blue: any network tells them apart
