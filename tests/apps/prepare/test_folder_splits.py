"""Random splits of folders: a fraction of each class, whole groups, copies together, and warnings of what cannot be."""

import re
import shutil
from collections import Counter, defaultdict

import pytest

from vidssl.apps.prepare.folder import prepare_folder
from vidssl.base.errors import DataError
from vidssl.data.video_list import read_list


def videos_of(root, *names):
    """Files of different content: copies are recognised by it."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"video {name}".encode())
    return root


def split(root, out, **options):
    """Return the report, and the names of each list."""
    report = prepare_folder(root, out, **options)
    return report, {path.stem: list(read_list(path).names) for path in out.glob("*.csv")}


def per_class(names):
    return Counter(name.split("/")[0] for name in names)


@pytest.mark.parametrize(
    ("sizes", "fraction", "tested"),
    [
        ({"a": 18, "b": 18, "c": 18, "d": 18}, 0.33, {"a": 6, "b": 6, "c": 6, "d": 6}),
        ({"ball": 7, "bow": 7, "golf": 100}, 0.33, {"ball": 2, "bow": 2, "golf": 33}),
        ({"a": 2, "b": 2, "c": 2}, 0.33, {"a": 1, "b": 1, "c": 1}),
        ({"a": 4, "b": 100, "c": 100}, 0.1, {"a": 1, "b": 10, "c": 10}),  # 10 % of 4 is less than half a video
        ({"a": 2, "b": 40}, 0.9, {"a": 1, "b": 36}),  # the last video of a class is for training
        ({"a": 1, "b": 9}, 0.9, {"b": 8}),
        ({"a": 5, "b": 5}, 0.5, {"a": 3, "b": 2}),
        ({"a": 50, "b": 50, "c": 2}, 0.02, {"a": 1, "b": 1}),  # 2 % of 102 are 2 videos, for 3 classes
    ],
)
def test_each_class_is_split(tmp_path, sizes, fraction, tested):
    root = videos_of(tmp_path / "root", *(f"{c}/{c}x{n}y.mp4" for c, size in sizes.items() for n in range(size)))
    report, lists = split(root, tmp_path / "lists", test=fraction)
    actual = per_class(lists["test"])
    assert sorted(lists["train"] + lists["test"]) == sorted(p.relative_to(root).as_posix() for p in root.rglob("*.mp4"))
    if tested in ({"a": 3, "b": 2}, {"a": 1, "b": 1}):  # which of the classes gets the odd video is drawn
        assert sorted(actual.values()) == sorted(tested.values())
    else:
        assert actual == tested
    without = sorted(sizes.keys() - actual.keys())
    assert bool(without) == ("have no video in test" in report)
    assert all(repr(name) in report.split("have no video in test")[1] for name in without)


def test_groups_are_split_by_class_as_far_as_they_allow(tmp_path):
    """As in UCF101: groups of 4 to 7 videos, each of one class."""
    names = [
        f"{c}/v_{c}_g{g:02d}_c{n}.mp4" for c in "abcde" for g in range(25) for n in range(4 + (g * 7 + ord(c)) % 4)
    ]
    root = videos_of(tmp_path / "root", *names)
    report, lists = split(root, tmp_path / "lists", group=r"v_\w+_g\d+", test=0.3)
    groups = {side: {name[:-7] for name in actual} for side, actual in lists.items()}
    assert not groups["train"] & groups["test"] and "recording" not in report
    all_of = per_class(names)
    for name, count in per_class(lists["test"]).items():
        assert abs(count / all_of[name] - 0.3) < 0.03, (name, count, all_of[name])


def test_seeds_draw_other_groups(tmp_path):
    persons = {p: [c for c in range(4) if (p + c) % 4] for p in range(12)}
    names = [f"{c}/p{p:02d}z{n}.mp4" for p, done in persons.items() for c in done for n in range(1 + p % 3)]
    root = videos_of(tmp_path / "root", *names)
    drawn = [tuple(split(root, tmp_path / f"o{s}", group=r"p\d+", seed=s)[1]["test"]) for s in range(6)]
    again = tuple(split(root, tmp_path / "again", group=r"p\d+", seed=2)[1]["test"])
    assert len({*drawn}) > 2 and again == drawn[2]


def test_a_class_that_is_one_group(tmp_path):
    root = videos_of(tmp_path / "root", *(f"{c}/p{p}z{n}.mp4" for c, p in (("a", 1), ("b", 2), ("b", 3)) for n in "12"))
    report, lists = split(root, tmp_path / "lists", group=r"p\d", test=0.5)
    assert per_class(lists["test"]) == {"b": 2}
    assert "warning: 1 of 2 classes have no video in test: 'a'" in report
    # Where each group is a class, the classes of the test list are others than those of training.
    report, lists = split(root, tmp_path / "classes", group=r"^\w", test=0.5)
    assert len(per_class(lists["test"])) == len(per_class(lists["train"])) == 1
    assert "have no video in train" in report and "have no video in test" in report


# Exact copies


def copied(root, *pairs):
    for source, target in pairs:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / source, root / target)


def test_exact_copies_are_in_one_list(tmp_path):
    root = videos_of(tmp_path / "root", *(f"{c}/{c}x{n}y.mp4" for c in "ab" for n in range(12)))
    copied(root, *((f"a/ax{n}y.mp4", f"{c}/IMG {n}.MOV") for n in range(4) for c in "ab"))
    report, lists = split(root, tmp_path / "lists", test=0.5)
    content = {side: {(root / name).read_bytes() for name in names} for side, names in lists.items()}
    assert not content["train"] & content["test"]
    assert "8 videos are exact copies of others, kept in one list: 'a/ax0y.mp4' is 'a/IMG 0.MOV'" in report
    assert "warning: 4 videos are exact copies of videos of another class: 'b/IMG 0.MOV' is 'a/IMG 0.MOV'" in report
    assert "copies of videos in" not in report


def test_same_size_is_not_a_copy(tmp_path):
    """The first and last bytes are equal too: only the whole content decides; empty files have none."""
    root = tmp_path / "root"
    for number in range(4):
        path = root / "ab"[number % 2] / f"{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = bytearray(400_000)
        content[200_000] = number
        path.write_bytes(content)
        (path.parent / f"empty{number}.mp4").touch()
    report, _ = split(root, tmp_path / "lists", test=0.5)
    assert "copies" not in report


def test_copies_in_folders_of_splits_are_named(tmp_path):
    names = [f"{s}/{c}/{s}{n}.mp4" for s in ("train", "test") for c in "ab" for n in range(4)]
    root = videos_of(tmp_path / "root", *names)
    copied(root, ("train/a/train0.mp4", "test/a/again.mp4"), ("train/a/train1.mp4", "train/a/more.mp4"))
    report, _ = split(root, tmp_path / "lists")
    assert "warning: 1 videos are exact copies of videos in another list: " in report
    assert "again.mp4' in test is '" in report and "train0.mp4' in train" in report
    assert "more.mp4" not in report.split("in another list")[1]


@pytest.mark.parametrize("by", ["pattern", "column"])
def test_groups_with_copies_of_each_other_are_one(tmp_path, by):
    """Whatever names them: with the copy in the other list the network would be tested on what it has seen."""
    root = videos_of(tmp_path / "root", *(f"{c}/p{p}_{n}.mp4" for c in "ab" for p in range(4) for n in range(3)))
    copied(root, ("a/p0_0.mp4", "a/p3_9.mp4"), ("b/p3_1.mp4", "b/p2_9.mp4"))
    options = {"group": r"/(p\d)_"}
    if by == "column":
        paths = sorted(str(path.relative_to(root)) for path in root.rglob("*.mp4"))
        rows = [f"{path},{path[0]},{path[2:4]}\n" for path in paths]
        (tmp_path / "labels.csv").write_text("path,label,who\n" + "".join(rows))
        options = {"labels": tmp_path / "labels.csv", "group_column": "who"}
    for seed in range(5):
        report, lists = split(root, tmp_path / f"lists{seed}", seed=seed, test=0.5, **options)
        who = [{name.split("/")[1][:2] for name in side} for side in lists.values()]
        assert sorted(map(sorted, who)) == [["p0", "p2", "p3"], ["p1"]]
        assert "2 videos are exact copies of others, kept in one list: " in report and "in another list" not in report
    with pytest.raises(DataError, match="are one group, 'a', with exact copies joined: use test=0 or other groups"):
        copied(root, ("a/p0_0.mp4", "b/p3_8.mp4"))
        split(root, tmp_path / "none", test=0.5, group="^(.)")


# Names of recordings


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (
            [f"{c}/v_{c}_g{g:02d}_c{n:02d}.avi" for c in ("Archery", "Bow") for g in range(1, 7) for n in range(1, 5)],
            "_g",
        ),
        ([f"{c}/person{p:02d}_{c}_d{d}.avi" for c in ("box", "jog") for p in range(8) for d in range(1, 5)], "person"),
        (
            [f"{c}/{m}_{c}_u_nm_{n}.avi" for c in ("hit", "run") for m in ("Fellini", "Nemo", "Up") for n in range(5)],
            r"\d",
        ),
        ([f"{c}/Subject {p}-{n}.avi" for c in ("box", "jog") for p in range(8) for n in range(4)], "subject"),
        ([f"{c}/S001C00{n}P00{p}R001A00{c}.avi" for c in "12" for p in range(8) for n in range(1, 4)], "P"),
        ([f"{c}/a{c}_s{p}_t{n}_color.avi" for c in "12" for p in range(8) for n in range(1, 5)], "s"),
        ([f"{c}/tape {m} clip{n}.avi" for c in ("hit", "run") for m in "abcde" for n in range(3)], r"\d"),
    ],
)
def test_names_that_look_like_recordings(tmp_path, names, pattern):
    root = videos_of(tmp_path / "root", *names)
    report, _ = split(root, tmp_path / "lists")
    line = next(line for line in report.splitlines() if "look like recordings" in line)
    option = re.search("group=REGEX, here '(.*)'", line)[1]
    assert pattern in option and line.startswith("warning: ")
    # The advice helps: with it no recording is in both lists.
    report, lists = split(root, tmp_path / "again", group=option)
    assert "look like recordings" not in report
    parts = defaultdict(set)
    for side, actual in lists.items():
        for name in actual:
            parts[side].add(re.search(option, name)[1 if re.compile(option).groups else 0])
    assert not parts["train"] & parts["test"]


@pytest.mark.parametrize(
    "names",
    [
        [f"{c}/{n:04d}.mp4" for c in "ab" for n in range(20)],
        [f"{c}/{c}_{n}.mp4" for c in ("run", "walk") for n in range(20)],
        [f"{c}/IMG_{n:04d}.MOV" for c in "ab" for n in range(20)],
        [f"{c}/{c}{n}QuUC4vJs_{n:06d}_{n + 10:06d}.mp4" for c in "ab" for n in range(20)],
        [f"{c}/{w}.mp4" for c in "ab" for w in ("one", "two", "three", "four", "five")],
    ],
)
def test_other_names_do_not(tmp_path, names):
    report, _ = split(videos_of(tmp_path / "root", *names), tmp_path / "lists")
    assert "recordings" not in report and "warning" not in report


def test_recordings_in_both_folders_of_a_split(tmp_path):
    names = [
        f"{s}/Bow/v_Bow_g{g:02d}_c{n}.avi" for s, m in (("train", (1, 2)), ("val", (3,))) for g in (1, 2, 3) for n in m
    ]
    report, _ = split(videos_of(tmp_path / "root", *names), tmp_path / "lists")
    assert "warning: 3 of 3 names that look like recordings are in train and val" in report and "group=" not in report
