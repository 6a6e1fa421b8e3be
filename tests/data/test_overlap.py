"""Rows that two lists share: every kind of copy, against a comparison of all pairs of files."""

import filecmp
import os
import shutil
import tarfile

import cv2
import numpy as np
import pytest

from vidssl.apps.shrink import shrink
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.data import find_same_videos
from vidssl.data.find_same_videos import content_hash, copied_rows, find_copies, find_overlap, own_rows, recording_group
from vidssl.data.video_list import Records, VideoList
from vidssl.evaluation.train_test_overlap import TrainingVideos, check_disjoint, measure_overlap


def listed(folder, *rows):
    """A list of names, or of (name, start, end)."""
    spans = [row if isinstance(row, tuple) else (row, None, None) for row in rows]
    return VideoList(folder / "list.csv", Records(folder, [VideoRecord(n, 0, a, b) for n, a, b in spans]), ())


def test_copies_are_those_of_a_comparison_of_all_pairs(tmp_path):
    """Files of few sizes, of which some differ in the middle only, below the ends that are read first."""
    random, bytes_of = generator(3), []
    for size in (0, 5, 5000, 300_000):
        first = random.integers(0, 255, size, np.uint8)
        second = first.copy()
        second[size // 2 : size // 2 + 1] ^= 1
        bytes_of += [first.tobytes(), second.tobytes()]
    names = [f"{n}.mp4" for n in range(40)]
    for name, choice in zip(names, random.integers(0, len(bytes_of), 40), strict=True):
        (tmp_path / name).write_bytes(bytes_of[choice])
    query, other = listed(tmp_path, *names[:25]), listed(tmp_path, *names[15:], "missing.mp4")
    actual = find_overlap(query, other, every=True)
    expected = [
        [n, m]
        for n, one in enumerate(query.names)
        for m, two in enumerate(other.names[:-1])
        if one != two and (tmp_path / one).stat().st_size
        if filecmp.cmp(tmp_path / one, tmp_path / two, shallow=False)
    ]
    assert expected and actual.copies.tolist() == expected == copied_rows(other, query).tolist()
    assert actual.same.tolist() == [[15 + n, n] for n in range(10)] == own_rows(other, query).tolist()
    assert actual.missing == 1 and not actual.one_list
    few = find_overlap(query, other)
    assert {*few.copies[:, 0].tolist()} == {*actual.copies[:, 0].tolist()} and few.groups == actual.groups


def test_files_are_read_whole_where_their_ends_are_equal(tmp_path, monkeypatch):
    read, original = [], find_same_videos._hash
    monkeypatch.setattr(
        find_same_videos, "_hash", lambda parts: read.append(sum(part.size for part in parts)) or original(parts)
    )
    for n in range(3):
        (tmp_path / f"{n}.mp4").write_bytes(bytes(300_000) + bytes([n > 0]))
    assert not len(find_overlap(listed(tmp_path, "0.mp4"), listed(tmp_path, "1.mp4", "2.mp4")).copies)
    assert read == 3 * [2 << 16]
    assert find_copies(tmp_path, ["0.mp4", "1.mp4", "2.mp4"]) == {"2.mp4": "1.mp4"} and read[3:] == 2 * [300_001]


def test_thousands_of_equal_files_are_no_millions_of_pairs(tmp_path):
    """As where each missing video is one placeholder."""
    names = [f"{n}.mp4" for n in range(2000)]
    (tmp_path / names[0]).write_bytes(b"no video")
    for name in names[1:]:
        os.link(tmp_path / names[0], tmp_path / name)
    actual = find_overlap(listed(tmp_path, *names), listed(tmp_path, *names))
    assert actual.copies.tolist()[:4] == [[0, 1], [0, 2], [1, 0], [1, 2]] and len(actual.copies) == 4000


@pytest.fixture
def kinds(tmp_path, write_video, numbered):
    """A folder with a video and the same video, or a similar one, in all forms that a list can name."""
    write_video(tmp_path / "a.mp4", numbered(6))
    shutil.copy(tmp_path / "a.mp4", tmp_path / "copy.avi")
    (tmp_path / "link.mp4").symlink_to("a.mp4")
    (tmp_path / "linked").symlink_to(tmp_path)
    os.link(tmp_path / "a.mp4", tmp_path / "hard.mp4")
    other = bytearray((tmp_path / "a.mp4").read_bytes())
    other[-1] ^= 1
    (tmp_path / "same_size.mp4").write_bytes(other)
    (tmp_path / "pipe.mp4").parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "pipe.mp4")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "a.mp4", "in/b.mp4")
        tar.add(tmp_path / "same_size.mp4", "in/c.mp4")
    for folder, values in {"f": (1, 2, 3), "g": (1, 2, 3), "h": (1, 9, 3)}.items():
        (tmp_path / folder).mkdir()
        for n, value in enumerate(values):
            cv2.imwrite(str(tmp_path / folder / f"{n}.png"), np.full((8, 8, 3), value, np.uint8))
    shrink(_csv(tmp_path, "a.mp4", "copy.avi"), out=tmp_path / "packed", to="frames")
    return tmp_path


def _csv(folder, *names):
    (folder / "list.csv").write_text("path\n" + "".join(f"{name}\n" for name in names))
    return folder / "list.csv"


@pytest.mark.parametrize(
    ("query", "other", "same", "copied"),
    [
        ("a.mp4", "a.mp4", True, False),
        ("a.mp4", "./a.mp4", True, False),
        ("link.mp4", "a.mp4", True, False),
        ("linked/a.mp4", "a.mp4", True, False),
        ("a.mp4", "copy.avi", False, True),
        ("link.mp4", "copy.avi", False, True),
        ("hard.mp4", "a.mp4", False, True),
        ("a.mp4", "same_size.mp4", False, False),
        ("x.tar#in/b.mp4", "a.mp4", False, True),
        ("x.tar#in/b.mp4", "x.tar#in/b.mp4", True, False),
        ("linked/x.tar#in/b.mp4", "x.tar#in/b.mp4", True, False),
        ("x.tar#in/c.mp4", "a.mp4", False, False),
        ("f", "g", False, True),
        ("f", "h", False, False),
        ("f", "f", True, False),
        ("packed/a.mp4", "packed/copy.avi", False, True),
        ("packed/a.mp4", "a.mp4", False, False),  # packed frames are other bytes: see by_name
        ("packed/none.mp4", "a.mp4", False, False),
        ("x.tar#none", "a.mp4", False, False),
        ("pipe.mp4", "a.mp4", False, False),
        ("none.mp4", "none.mp4", True, False),
    ],
)
def test_every_form_of_a_video(kinds, query, other, same, copied):
    actual = find_overlap(listed(kinds, query), listed(kinds, other))
    assert (len(actual.same), len(actual.copies)) == (same, copied)
    back = find_overlap(listed(kinds, other), listed(kinds, query))
    assert (len(back.same), len(back.copies)) == (same, copied)


def test_spans_of_copies_overlap_or_not(kinds):
    query = listed(kinds, ("a.mp4", 0.0, 1.0), ("a.mp4", 1.0, 2.0), ("a.mp4", 1.5, None))
    other = listed(kinds, ("copy.avi", 1.0, 1.5), ("copy.avi", None, 0.5), ("a.mp4", 0.9, 1.1))
    actual = find_overlap(query, other)
    assert actual.copies.tolist() == [[0, 1], [1, 0]] and actual.same.tolist() == [[0, 2], [1, 2]]


def test_copies_of_other_settings_have_the_names_of_the_originals(kinds):
    originals, packed = listed(kinds, "a.mp4", "copy.avi"), listed(kinds / "packed", "copy.avi")
    assert not len(find_overlap(originals, packed).copies)
    assert find_overlap(originals, packed, by_name=True).copies.tolist() == [[1, 0]]
    for train, query in ((originals, packed), (packed, originals)):
        with pytest.raises(DataError, match=r"1 videos of .* are in .* too, the first 'copy.avi'"):
            check_disjoint(train, query, "svm")


def test_a_list_tested_on_itself_has_its_videos_under_their_own_names(kinds):
    query = listed(kinds, "a.mp4", "copy.avi", "same_size.mp4")
    results = measure_overlap(query, query, lambda: TrainingVideos("train.csv", query))
    assert (results["training"]["videos"], results["training"]["copies"]) == (3, 0)
    assert (results["gallery"]["videos"], results["gallery"]["copies"]) == (2, 2)


def test_a_list_and_itself(kinds):
    """Whatever its name: then a video does not count for itself, only for its copies."""
    query = listed(kinds, "a.mp4", "copy.avi", "same_size.mp4")
    for other in (query, listed(kinds, "linked/same_size.mp4", "link.mp4", "copy.avi")):
        actual = find_overlap(query, other)
        assert actual.one_list and len(actual.same) == 3 and len(actual.copies) == 2
    assert not find_overlap(query, listed(kinds, "a.mp4", "copy.avi")).one_list
    halves = [listed(kinds, *((name, *span) for name in query.names)) for span in ((0, 1), (1, 2))]
    assert not find_overlap(*halves).one_list and not len(find_overlap(*halves).copies)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("Archery/v_Archery_g08_c03.avi", "v_Archery_g08"),
        ("/data/x.tar#Archery/v_Archery_g08_c03.avi", "v_Archery_g08"),
        ("v_HandstandPushups_g01_c02_000010.mp4", "v_HandstandPushups_g01"),
        ("frames/v_Archery_g08_c03/00012.jpg", "v_Archery_g08"),
        ("v_Archery_g08_c03/a/b/clip.mp4", None),  # a folder further up is no name of a video
        ("Archery_g08_c03.avi", None),
        ("v_Archery_c03.avi", None),
        ("v_Archery_g08.avi", None),
        ("my_v_Archery_g08_c03.avi", None),
    ],
)
def test_recordings_are_read_from_names(path, group):
    assert recording_group(path) == group


def test_recordings_are_shared_with_other_videos_only(tmp_path):
    names = [f"v_a_g0{group}_c0{clip}.mp4" for group in (1, 2) for clip in (1, 2)]
    query = listed(tmp_path, names[0], names[2], "own.mp4")
    actual = find_overlap(query, listed(tmp_path, names[0], names[1], names[2]))
    assert actual.groups == {0: "v_a_g01"}  # of the other recording there is only the query itself
    assert find_overlap(query, query).groups == {}
    assert find_overlap(listed(tmp_path, *names), listed(tmp_path, *names)).groups.keys() == {0, 1, 2, 3}


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"first")
    before = content_hash(str(path))
    path.write_bytes(b"later")
    os.utime(path, ns=(1, 1))
    assert before != content_hash(str(path)) and content_hash(str(path)) is not None


def test_what_has_no_content_equals_nothing(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.mp4").touch()
    assert find_copies(tmp_path, ["x", "y", "x.mp4", "y.mp4"]) == {}
