"""The benchmark of the tracker: sequences of OTB in every form, success against loops, one table of several folders."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import tracking

sys.path.pop(0)

from vidssl.jobs.track import tracker_settings

QUICK = ["search.short_side=48", "size=32"]


@pytest.fixture
def otb(tmp_path):
    """Two sequences of a bright square that moves 2 pixels a frame: with tabs, and with commas and one box fewer."""
    for name, separator, boxes in (("tabs", "\t", 8), ("commas", ",", 7)):
        (tmp_path / name / "img").mkdir(parents=True)
        for t in range(8):
            image = np.full((48, 64, 3), 40, np.uint8)
            image[10:26, 8 + 2 * t : 24 + 2 * t] = (40, 200, 250)
            cv2.imwrite(str(tmp_path / name / "img" / f"{t + 1:04d}.png"), image)
        lines = [separator.join(str(value) for value in (9 + 2 * t, 11, 16, 16)) for t in range(boxes)]
        (tmp_path / name / "groundtruth_rect.txt").write_text("\r\n".join(lines))
    return tmp_path


@pytest.mark.parametrize(("name", "count"), [("tabs", 8), ("commas", 7)])
def test_sequences_of_otb_are_read(otb, name, count):
    (actual,) = tracking.sequences(otb / name, "test", 9, otb / "out", tracker_settings(QUICK))
    assert len(actual.frames) == len(actual.boxes) == count
    np.testing.assert_array_equal(actual.truth, [[8 + 2 * t, 10, 24 + 2 * t, 26] for t in range(count)])
    assert actual.frames[3, :, 12, 15].tolist() == [250, 200, 40]  # RGB, inside the box
    assert (otb / "out" / name / "proposals" / "img.npz").exists()


def overlap(one, other):
    """IoU by counting pixels."""
    masks = []
    for x1, y1, x2, y2 in (one, other):
        mask = np.zeros((48, 64), bool)
        mask[int(y1) : int(y2), int(x1) : int(x2)] = True
        masks.append(mask)
    return np.sum(masks[0] & masks[1]) / np.sum(masks[0] | masks[1])


def test_one_table_of_several_sequences(otb, monkeypatch, capsys):
    cfg = Path(__file__).parents[2] / "configs/toy/frame_invariance.yaml"
    words = [otb / "tabs", otb / "commas", "--cfg", cfg, "--checkpoint", "random", "--out", otb / "out", "--gap", "4"]
    words += ["--json", otb / "result.json", "--tracker", *QUICK]
    monkeypatch.setattr(sys, "argv", ["tracking.py", *map(str, words)])
    tracking.main()
    rows = json.loads((otb / "result.json").read_text())["tracking"]
    assert (
        len(rows) == 2 * (3 + len(tracking.VARIANTS)) and capsys.readouterr().out.count("| commas |") == len(rows) / 2
    )
    by_name = {(row["videos"], row["tracker"]): row for row in rows}
    for name, count in (("tabs", 8), ("commas", 7)):
        truth = [[8 + 2 * t, 10, 24 + 2 * t, 26] for t in range(count)]
        stays = [overlap(truth[0], box) for box in truth[1:]]
        row = by_name[name, "the first box, which stays"]
        assert row["mean_iou"] == pytest.approx(np.mean(stays)) and row["held"] == float(stays[3] >= 0.5)
        assert row["success"] == pytest.approx(np.mean(np.array(stays) >= 0.5)) and 0 < row["success"] < 1
        assert by_name[name, "the best of the proposals"]["success"] == 1
        tracked = by_name[name, "best path, both and anchored"]
        assert tracked["network"] == "random" and tracked["success"] > row["success"]
