"""A training on two sets of real videos, from the command line to a test of its network."""

import json
from pathlib import Path

from vidssl.data.write_lists import write_lists

TOP = Path(__file__).parents[2]


def test_two_sets_of_real_videos(run_script, real, tmp_path):
    """Each set has its folder and its classes, one has a weight; the network is tested on one of them."""
    for name, step in (("weizmann", 6), ("utd_mhad_rgb", 16)):  # 12 and 10 videos
        files = sorted(path.relative_to(real / name).as_posix() for path in (real / name).rglob("*.mp4"))[::step]
        root = real / name if name == "utd_mhad_rgb" else tmp_path / "elsewhere"
        write_lists(tmp_path / name, root, {"train": [(file, 0) for file in files]}, [name])
    lists = f"[{{list: weizmann/train.csv, root: {real}/weizmann}}, {{list: utd_mhad_rgb/train.csv, weight: 2}}]"
    given = ["--cfg", TOP / "configs/toy/sce.yaml", "data.moving_digits=null", f"data.train={lists}", "output=run"]
    more = "steps=null", "epochs=2", "batch_size=4", "device=cpu", "optimizer={name: sgd, lr: 0.01}"
    status, _, err = run_script(TOP / "tools/train_net.py", *given, *more, cwd=tmp_path)
    assert status == 0, err
    assert "22 videos of weizmann/train.csv and utd_mhad_rgb/train.csv; steps 0-16 of 4 videos" in err
    assert "broken" not in err
    log = tmp_path / "run/metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [step / 8 for step in range(1, 17)]  # 12 + 2 x 10 samples

    status, _, err = run_script(TOP / "tools/train_net.py", "--cfg", "run/config.yaml", cwd=tmp_path)
    assert status == 0 and "resumed run at step 16" in err, err  # the config that was written is the same run
    where = ["utd_mhad_rgb/train.csv", "--checkpoint", "run/checkpoints/last.pt", "--out", "out", "--device", "cpu"]
    status, _, err = run_script(
        TOP / "tools/test_net.py", *where, "--train-list", where[0], "--protocol", "retrieval", cwd=tmp_path
    )
    assert status == 0, err
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["num_videos"] == 10
    assert [each["list"] for each in results["config"]["data"]["train"]] == [
        "weizmann/train.csv",
        "utd_mhad_rgb/train.csv",
    ]
