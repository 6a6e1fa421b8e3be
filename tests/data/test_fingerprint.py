"""Fingerprints of the files of a list: equal for the same files, different for others of the same names."""

import json
import os

import pytest

from vidssl.base.errors import DataError
from vidssl.data import list_identity as fingerprint
from vidssl.data.list_identity import check_copies, identify
from vidssl.data.video_list import read_list


@pytest.fixture
def make(tmp_path):
    """Write files of so many bytes below a folder, and read the list of them: `make("a", {"x/1.mp4": 5})`."""

    def write(folder, sizes, rows=None, header="path"):
        for name, size in sizes.items():
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * size)
        (tmp_path / "list.csv").write_text("\n".join([header, *(rows or sizes)]) + "\n")
        return read_list(tmp_path / "list.csv", tmp_path / folder, allow_external=True)

    return write


FILES = {"x/1.mp4": 5, "x/2.mp4": 70, "y/3.mp4": 5}


def test_same_files_give_the_same_fingerprint_and_others_do_not(make, tmp_path):
    here = identify(make("a", FILES))
    assert here == json.loads(json.dumps(here))  # plain data
    assert (here["root"], here["files"], here["missing"], here["bytes"]) == (str(tmp_path / "a"), 3, 0, 80)
    assert (here["fps"], here["copies"]) == (None, None)
    for file in (tmp_path / "a").rglob("*.mp4"):
        os.utime(file, (1, 1))  # copied anew, to the same place
    assert identify(make("a", {}, FILES)) == here
    other = identify(make("b", FILES))
    assert {name for name in here if here[name] != other[name]} == {"root"}
    changed = identify(make("a", {**FILES, "y/3.mp4": 6}))
    assert {name for name in here if here[name] != changed[name]} == {"bytes", "sizes"}
    swapped = identify(make("a", {"x/1.mp4": 70, "x/2.mp4": 5, "y/3.mp4": 5}))
    assert {name for name in here if here[name] != swapped[name]} == {"sizes"}


def test_missing_files_change_the_fingerprint(make, tmp_path):
    listed = make("a", {"x/1.mp4": 5, "x/2.mp4": 0})
    here = identify(listed)
    (tmp_path / "a/x/2.mp4").unlink()
    gone = identify(listed)
    assert (here["missing"], gone["missing"]) == (0, 1) and gone["sizes"] != here["sizes"]


def test_rates_and_masks_belong_to_the_files(make, tmp_path):
    slow, fast = (identify(make("a", FILES, [f"x/1.mp4,{fps}", "x/2.mp4,"], "path,fps")) for fps in (5, 25))
    assert (slow["fps"], fast["fps"]) == ([5.0, 5.0], [25.0, 25.0])
    one, other = (identify(make("a", {"1.png": 9, "m.png": size}, ["1.png,m.png"], "path,mask")) for size in (3, 4))
    assert one["files"] == 2 and one["sizes"] != other["sizes"]


def test_lists_that_differ_in_the_frame_rate_differ(make):
    prints = {
        make("a", FILES, rows, "path,fps").fingerprint
        for rows in (["x/1.mp4,5", "x/2.mp4,"], ["x/1.mp4,25", "x/2.mp4,"], ["x/1.mp4,", "x/2.mp4,5"])
    }
    without = make("a", FILES, ["x/1.mp4,", "x/2.mp4,"], "path,fps").fingerprint
    assert len(prints | {without}) == 4
    assert without == make("a", FILES, ["x/1.mp4", "x/2.mp4"]).fingerprint


def test_a_folder_of_images_is_its_images(make, tmp_path):
    sizes = {f"v/img_{n}.jpg": 10 + n for n in range(3)}
    listed = make("a", sizes, ["v"])
    here = identify(listed)
    assert (here["files"], here["bytes"]) == (1, 22)
    (tmp_path / "a/v/.hidden").touch()
    assert identify(listed) == here
    actual = [here["sizes"]]
    for file, content in {"v/img_0.jpg": b"other", "v/img_2.jpg": b"", "v/img_3.jpg": b"x" * 12}.items():
        (tmp_path / "a" / file).write_bytes(content)
        actual.append(identify(listed)["sizes"])
    assert len({*actual}) == 4
    old = identify(listed)
    for number, fill in enumerate((b"y", b"z")):  # in the middle, of the same size: all images count
        (tmp_path / "a/v/img_1.jpg").write_bytes(fill * 11)
        os.utime(tmp_path / "a/v/img_1.jpg", ns=(1, number))
        new = identify(listed)
        assert {name for name in new if new[name] != old[name]} == {"changed"}
        old = new
    (tmp_path / "a/empty").mkdir()
    assert identify(make("a", {}, ["empty"]))["bytes"] == 0


def test_images_of_the_same_size_and_other_content_are_noticed(make, tmp_path):
    here = identify(make("a", {"1.bmp": 9, "2.bmp": 9}))
    (tmp_path / "a/2.bmp").write_bytes(b"y" * 9)
    os.utime(tmp_path / "a/2.bmp", ns=(1, 1))
    now = identify(make("a", {}, ["1.bmp", "2.bmp"]))
    assert {name for name in here if here[name] != now[name]} == {"changed"}


def test_a_file_of_many_rows_is_inspected_once(make, monkeypatch):
    rows = [f"{name},{start}" for start in range(7) for name in FILES]
    listed = make("a", FILES, rows, "path,start")
    looked, lstat = [], os.lstat
    monkeypatch.setattr(fingerprint.os, "lstat", lambda path: (looked.append(str(path)), lstat(path))[1])
    actual = identify(listed)
    assert len(listed) == 21 and actual["files"] == 3
    assert sum(path.endswith(".mp4") for path in looked) == 3
    assert actual["sizes"] == identify(make("a", {}, FILES))["sizes"]


def test_copies_are_known_by_the_settings_above_them(make, tmp_path):
    small, smaller = {"short_side": 256, "quality": 18}, {"short_side": 128, "quality": 18}
    listed = make("a", FILES)
    assert identify(listed)["copies"] is None
    (tmp_path / "a/shrink.json").write_text(json.dumps(small))
    assert identify(listed)["copies"] == small
    (tmp_path / "inner.csv").write_text("path\n1.mp4\n")
    inner = read_list(tmp_path / "inner.csv", tmp_path / "a/x")  # the root lies below the settings
    assert identify(inner)["copies"] == small
    outer = make("", {"b/9.mp4": 4}, ["b/9.mp4", "a/x/1.mp4"])  # and above them, beside originals
    assert identify(outer)["copies"] == [None, small]
    (tmp_path / "a/x/shrink.json").write_text(json.dumps(smaller))
    assert identify(listed)["copies"] == [smaller, small]


def test_links_to_copies_are_copies(make, tmp_path):
    settings = {"short_side": 128, "quality": 18}
    make("copies", {"x/1.mp4": 5, "x/2.mp4": 6})
    (tmp_path / "copies/shrink.json").write_text(json.dumps(settings))
    (tmp_path / "farm").mkdir()
    (tmp_path / "farm/1.mp4").symlink_to("../copies/x/1.mp4")
    (tmp_path / "farm/y").symlink_to(tmp_path / "copies/x")
    for rows, count in ((["1.mp4"], 5), (["y/2.mp4"], 6), (["../farm/y/../x/2.mp4"], 6)):
        actual = identify(make("farm", {}, rows))
        assert (actual["copies"], actual["bytes"], actual["missing"]) == (settings, count, 0), rows


@pytest.mark.parametrize("content", ["{", "[1]", "7", ""])
def test_settings_that_cannot_be_read(make, tmp_path, content):
    listed = make("a", FILES)
    (tmp_path / "a/shrink.json").write_text(content)
    with pytest.raises(DataError, match=r"^cannot read the settings of .* in \S+/a/shrink\.json .*originals$"):
        identify(listed)
    (tmp_path / "a/shrink.json").unlink()
    (tmp_path / "a/shrink.json").mkdir()
    with pytest.raises(DataError, match=r"^cannot read the settings of .*Is a directory"):
        identify(listed)


def test_copies_are_not_compared_with_originals(tmp_path):
    originals, small, other = (
        {"copies": copies, "files": 2, "missing": 0}
        for copies in (None, {"short_side": 128, "quality": 18, "fps": None}, {"short_side": 256, "quality": 18})
    )
    mixed = {**small, "copies": [None, small["copies"]]}
    check_copies("g.csv", {"copies": None, "files": 2, "missing": 2}, "q.csv", small)  # reading names the files
    for kind in (originals, small):
        check_copies("g.csv", kind, "q.csv", dict(kind))
    for there, asked, named in (
        (originals, small, "g.csv contains original videos, q.csv contains shrunk copies (short_side 128, quality 18)"),
        (small, other, "(short_side 128, quality 18), q.csv contains shrunk copies (short_side 256, quality 18)"),
        (originals, mixed, "original videos and shrunk copies"),
        (mixed, mixed, "original videos and shrunk copies"),  # a copy in one may be an original in the other
    ):
        with pytest.raises(DataError) as caught:
            check_copies("g.csv", there, "q.csv", asked)
        assert named in str(caught.value) and "root=FOLDER" in str(caught.value) and "\n" not in str(caught.value)
