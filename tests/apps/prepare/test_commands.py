"""The scripts in datasets/, which are `vidssl prepare`: each writes its lists, and fails in one line."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from vidssl.data.video_list import read_list

DATASETS = Path(__file__).parents[3] / "datasets"
# For each command the arguments for its miniature data set, and the paths that it must list.
GIVEN = {
    "ucf101": (["UCF-101", "--splits", "ucf"], {"train1": ["Archery/v_Archery_g08_c01.avi"]}),
    "hmdb51": (["hmdb", "--splits", "splits"], {"train1": ["wave/#1_;(x).avi"], "test1": ["wave/b.avi"]}),
    "kinetics": (["k400", "--train", "train.csv"], {"train": ["yoga/-aaaaaaaaaa_000001_000011.mp4"]}),
    "ssv2": (
        ["ssv2", "--train", "train.json", "--test", "test.json", "--labels", "labels.json"],
        {"train": ["7.webm"], "test": ["8.webm"]},
    ),
    "trackingnet": (["net", "--chunks", "0", "--fps", "29.97"], {"train": ["TRAIN_0/frames/-a_0"]}),
    "list": (
        ["list.txt", "--form", "mmaction2", "--root", "hmdb", "--separator", ",", "--name", "some"],
        {"some": ["wave/b.avi"]},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of miniatures of all data sets."""
    folder = tmp_path_factory.mktemp("sets")

    def write(name, text=""):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    for name in ("UCF-101/Archery/v_Archery_g01_c01.avi", "UCF-101/Archery/v_Archery_g08_c01.avi"):
        write(name)
    write("ucf/classInd.txt", "1 Archery\r\n")
    write("ucf/trainlist01.txt", "Archery/v_Archery_g08_c01.avi 1\r\n")
    write("ucf/testlist01.txt", "Archery/v_Archery_g01_c01.avi\r\n")
    for name in ("hmdb/wave/#1_;(x).avi", "hmdb/wave/b.avi"):
        write(name)
    write("splits/wave_test_split1.txt", "#1_;(x).avi 1 \nb.avi 2 \n")
    header = "label,youtube_id,time_start,time_end,split\n"
    write("k400/yoga/-aaaaaaaaaa_000001_000011.mp4")
    write("train.csv", f"{header}yoga,-aaaaaaaaaa,1,11,train\n")
    write("ssv2/7.webm")
    write("ssv2/8.webm")
    for side, number in (("train", "7"), ("test", "8")):
        write(f"{side}.json", json.dumps([{"id": number, "template": "Holding [something]"}]))
    write("labels.json", '{"Holding something": "0"}')
    write("net/TRAIN_0/frames/-a_0/0.jpg")
    write("net/TRAIN_0/anno/-a_0.txt", "1,2,3,4\n")
    write("list.txt", "wave/b.avi,3\n")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Run the script of a data set; return status, stdout and stderr."""

    def run(name, *arguments):
        monkeypatch.chdir(folder)
        script = DATASETS / f"prepare_{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        status = 0
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", GIVEN)
def test_scripts_write_lists_or_fail_in_one_line(command, folder, name):
    arguments, expected = GIVEN[name]
    status, out, err = command(name, *arguments, "--out", f"lists/{name}")
    assert (status, err) == (0, "") and out.endswith(f"lists written to lists/{name}\n")
    for side, names in expected.items():
        found = read_list(folder / "lists" / name / f"{side}.csv")
        assert list(found.names) == names and all(Path(record.path).exists() for record in found.records)
        assert f"{side}: 1 listed, 1 found, 0 missing" in out
    roots = ("UCF-101", "hmdb", "k400", "ssv2", "net")
    arguments = ["empty" if word in roots else word for word in arguments]
    status, out, err = command(name, *arguments, "--out", "none")
    assert (status, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert "empty" in err and not (folder / "none").exists()


def test_errors_and_reports_name_options(command):
    assert command("ucf101", "hmdb", "--splits", "ucf", "--out", "wrong")[2] == (
        "error: train1: 1 of 1 listed files are not in hmdb, a fraction of 1, the limit is 0.05 (--max-missing "
        "FRACTION): 'Archery/v_Archery_g08_c01.avi'; is it the right folder, and the right list?\n"
    )
    assert "set --fps RATE" in command("trackingnet", "net", "--chunks", "0", "--out", "lists/named")[1]
