"""A training on two sets of real videos, from the command line to a test of its network."""

import json
from pathlib import Path

from vidssl import cli
from vidssl.data.write_lists import write_lists

TOP = Path(__file__).parents[2]


def test_two_sets_of_real_videos(real, tmp_path, monkeypatch, caplog):
    """Each set has its folder and its classes, one has a weight; the network is tested on one of them."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    for name, step in (("weizmann", 6), ("utd_mhad_rgb", 16)):  # 12 and 10 videos
        files = sorted(path.relative_to(real / name).as_posix() for path in (real / name).rglob("*.mp4"))[::step]
        root = real / name if name == "utd_mhad_rgb" else tmp_path / "elsewhere"
        write_lists(tmp_path / name, root, {"train": [(file, 0) for file in files]}, [name])
    lists = f"[{{list: weizmann/train.csv, root: {real}/weizmann}}, {{list: utd_mhad_rgb/train.csv, weight: 2}}]"
    given = ["--cfg", str(TOP / "configs/toy/sce.yaml"), "data.moving_digits=null", f"data.train={lists}", "output=run"]
    more = "steps=null", "epochs=1", "batch_size=4", "device=cpu", "optimizer={name: sgd, lr: 0.01}"
    cli.run("train", [*given, *more])
    assert "22 videos of weizmann/train.csv and utd_mhad_rgb/train.csv; steps 0-8 of 4 videos" in caplog.text
    assert "broken" not in caplog.text
    log = tmp_path / "run/metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [step / 8 for step in range(1, 9)]  # 12 + 2 x 10 samples

    cli.run("train", ["--cfg", "run/config.yaml"])  # the config that was written is the same run
    assert "resumed run at step 8" in caplog.text
    where = ["utd_mhad_rgb/train.csv", "--checkpoint", "run/checkpoints/last.pt", "--out", "out", "--device", "cpu"]
    cli.run("test", [*where, "--train-list", where[0], "--protocol", "retrieval"])
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["num_videos"] == 10
    assert [each["list"] for each in results["config"]["data"]["train"]] == [
        "weizmann/train.csv",
        "utd_mhad_rgb/train.csv",
    ]
