"""What the tests of a search share: an untrained network, two lists, and errors of one line."""

import shutil
from pathlib import Path

import pytest

from vidssl.data.video_list import read_list

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
SETTINGS = ["data.moving_digits=null", "data.train=none.csv"]
GALLERY, QUERIES = 12, 7  # videos


@pytest.fixture
def options():
    """An untrained network, with its config and its clips."""
    clips = {"clips": 1, "crops": 1, "size": 24, "batch_size": 4, "workers": 0, "device": "cpu"}
    return {"model": "random", "cfg": TOY, "settings": SETTINGS, **clips}


@pytest.fixture
def lists(digits, tmp_path):
    """Copies of some training and test videos in a folder, and their lists: (gallery, query)."""
    collected = []
    for name, count in (("train", GALLERY), ("test", QUERIES)):
        source = read_list(digits / f"motion/{name}.csv")
        (tmp_path / "videos" / name).mkdir(parents=True)
        rows = ["path,label"]
        for n, record in enumerate(source.records[:count]):
            shutil.copy(record.path, tmp_path / "videos" / name / f"{n}.mp4")
            rows.append(f"{name}/{n}.mp4,{record.label}")
        collected.append(tmp_path / "videos" / f"{name}.csv")
        collected[-1].write_text("\n".join(rows) + "\n")
        (tmp_path / "videos" / "classes.txt").write_text("".join(f"{c}\n" for c in source.classes))
    return collected


@pytest.fixture
def one_line():
    """Run what must fail, and give its message."""

    def run(error, work, *arguments, **settings):
        with pytest.raises(error) as caught:
            work(*arguments, **settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return run
