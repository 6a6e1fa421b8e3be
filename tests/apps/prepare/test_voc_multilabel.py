"""Lists of Pascal VOC with several labels, from miniatures in its official form."""

import numpy as np
import pytest
from PIL import Image

from vidssl.apps.prepare import prepare_voc_classes
from vidssl.base.errors import DataError
from vidssl.data.video_list import read_list

MARKS = {
    "trainval": {"000005": {"cat": 1, "dog": -1, "tree": 0}, "000007": {"cat": -1, "dog": 1, "tree": 1}},
    "test": {"000001": {"cat": -1, "dog": -1, "tree": -1}, "000002": {"cat": 0, "dog": 1, "tree": -1}},
}


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2007"
    (root / "JPEGImages").mkdir(parents=True)
    sets = root / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    for split, images in MARKS.items():
        (sets / f"{split}.txt").write_text("".join(f"{name}\n" for name in images))
        for kind in ("cat", "dog", "tree"):
            # VOC aligns the numbers to the right.
            lines = [f"{name} {marks[kind]:2d}\n" for name, marks in images.items()]
            (sets / f"{kind}_{split}.txt").write_text("".join(lines))
        for name in images:
            Image.fromarray(np.zeros((8, 12, 3), np.uint8)).save(root / "JPEGImages" / f"{name}.jpg")
    return root


def test_the_labels_are_those_of_the_official_files(voc, tmp_path):
    report = prepare_voc_classes(voc, tmp_path / "lists")
    assert report == "train: 2 images\ntest: 2 images\n3 classes"
    assert (tmp_path / "lists" / "train.csv").read_text() == (
        "path,labels\nJPEGImages/000005.jpg,0 2?\nJPEGImages/000007.jpg,1 2\n"
    )
    for name, split in (("train", "trainval"), ("test", "test")):
        listed = read_list(tmp_path / "lists" / f"{name}.csv")
        expected = [[{1: 1, 0: -1, -1: 0}[mark] for mark in marks.values()] for marks in MARKS[split].values()]
        assert listed.classes == ("cat", "dog", "tree") and listed.targets.tolist() == expected


def test_errors_name_the_file(voc, tmp_path):
    def refused(root, message):
        with pytest.raises(DataError, match=message):
            prepare_voc_classes(root, tmp_path / "lists")
        assert not (tmp_path / "lists").exists()

    refused(voc.parent, r"no files CLASS_trainval.txt in .*: name the folder of a year")
    (voc / "JPEGImages" / "000002.jpg").unlink()
    refused(voc, r"test: 1 of 2 images are missing in .*, the first is JPEGImages/000002.jpg")
    (voc / "ImageSets" / "Main" / "dog_test.txt").write_text("000001 yes\n")
    refused(voc, r"dog_test.txt:1: '000001 yes' is not the name of an image and 1, 0 or -1")
    (voc / "ImageSets" / "Main" / "dog_test.txt").unlink()
    refused(voc, r"cannot read list .*dog_test.txt: No such file.* VOC has a file for each class")


def test_images_that_files_name_twice(voc, tmp_path):
    """The same line twice says nothing new; a line that says otherwise is an error."""
    path = voc / "ImageSets" / "Main" / "cat_trainval.txt"
    path.write_text(path.read_text() + "000005  1\n")
    prepare_voc_classes(voc, tmp_path / "lists")
    assert read_list(tmp_path / "lists/train.csv").targets.tolist() == [[1, 0, -1], [0, 1, 1]]
    path.write_text(path.read_text() + "000005 -1\n")
    with pytest.raises(DataError, match=r"cat_trainval.txt:4: '000005 -1' contradicts .*:1: delete one"):
        prepare_voc_classes(voc, tmp_path / "again")
