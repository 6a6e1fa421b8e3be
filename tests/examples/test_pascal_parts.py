"""Pascal-Part: crops and masks match the annotations, and damaged files are refused."""

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.video.reader import open_video


@pytest.fixture(scope="module", autouse=True)
def names(plug_in):
    """What the tests use of the example."""
    global read_mask, AnnotatedObject, ObjectPart, labelled, prepare_pascal_parts, read_annotation
    read_mask, script = plug_in("part_segmentation").read_mask, plug_in("prepare_pascal_parts")
    AnnotatedObject, ObjectPart, labelled = script.AnnotatedObject, script.ObjectPart, script.labelled
    prepare_pascal_parts, read_annotation = script.prepare_pascal_parts, script.read_annotation


def area(x1, y1, x2, y2, shape=(80, 120)):
    mask = np.zeros(shape, np.uint8)
    mask[y1:y2, x1:x2] = 1
    return mask


def structs(rows):
    """A 1xN struct array, as MATLAB has them; without a row an empty matrix."""
    if not rows:
        return np.zeros((0, 0))
    array = np.empty((1, len(rows)), [(name, object) for name in rows[0]])
    for n, row in enumerate(rows):
        array[0, n] = tuple(row.values())
    return array


def thing(name, mask, *parts):
    parts = structs([{"part_name": part, "mask": pixels} for part, pixels in parts])
    return {"class": name, "class_ind": 7.0, "mask": mask, "parts": parts}


def write(folder, name, *objects, shape=(80, 120)):
    """An image whose left half is red and right half blue, and its annotation."""
    picture = np.zeros((*shape, 3), np.uint8)
    picture[:, : shape[1] // 2], picture[:, shape[1] // 2 :] = (0, 0, 250), (250, 0, 0)
    for place in ("VOC2010/JPEGImages", "parts"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(folder / "VOC2010/JPEGImages" / f"{name}.jpg"), picture)
    anno = {"imname": name, "objects": structs(objects)}
    savemat(folder / "parts" / f"{name}.mat", {"anno": structs([anno])})


def split(folder, **images):
    (folder / "VOC2010/ImageSets/Main").mkdir(parents=True, exist_ok=True)
    for name, files in images.items():
        text = "".join(f"{file}\n" for file in files)
        (folder / "VOC2010/ImageSets/Main" / f"{name}.txt").write_text(text)


@pytest.fixture
def voc(tmp_path):
    """Two buses, one of them with two wheels; dogs; something small, without parts, in no split."""
    bus = thing("bus", area(20, 10, 100, 50), ("wheel_1", area(20, 40, 30, 50)), ("wheel_2", area(90, 40, 100, 50)))
    # The eye lies on the head; the head is named first in one image and the eye in the other.
    head, eye = ("head", area(10, 10, 40, 40)), ("leye", area(20, 20, 26, 26))
    write(tmp_path, "2008_000001", bus, thing("dog", area(10, 10, 50, 70), head, eye))
    write(tmp_path, "2008_000002", thing("bus", area(0, 0, 40, 80), ("door_1", area(5, 5, 10, 70))))
    write(tmp_path, "2008_000003", thing("dog", area(10, 10, 50, 70), eye, head))
    tiny, chair = thing("dog", area(0, 0, 31, 60), head), thing("chair", area(0, 0, 60, 60))
    write(tmp_path, "2008_000004", tiny, chair)
    write(tmp_path, "2008_000005", bus)
    write(tmp_path, "2008_000006")  # an image without an object
    split(
        tmp_path, train=["2008_000001", "2008_000004", "2008_000006"], val=["2008_000002", "2008_000003", "2009_000001"]
    )
    return tmp_path


def prepare(folder, name="out", **options):
    return prepare_pascal_parts(folder / "VOC2010", folder / "parts", folder / name, **options)


def test_lists_and_names_of_parts(voc):
    report = prepare(voc)
    assert sorted(path.name for path in (voc / "out").iterdir()) == ["bus", "dog"]
    train, val = (read_list(voc / "out/bus" / f"{name}.csv") for name in ("train", "val"))
    assert train.names == ("images/2008_000001_0.jpg",) and val.names == ("images/2008_000002_0.jpg",)
    assert train.classes == ("bus", "dog") and {r.label for r in (*train.records, *val.records)} == {0}
    assert read_list(voc / "out/dog/val.csv").records[0].label == 1
    names = (voc / "out/bus/parts.txt").read_text().split("\n")
    assert names == ["background", "rest of the object", "wheel", "door", ""]
    assert report.split("\n") == [
        "bus: 1 train, 1 val, 4 parts",
        "dog: 1 train, 1 val, 4 parts",
        "left out: 1 images in no split",
        "left out: 1 objects under 32 pixels",
        "left out: 1 objects without parts",
    ]


def test_masks_and_crops_are_what_the_annotation_says(voc):
    """The bus is 80x40 pixels, the crop 80x80: each row of it stands there twice."""
    prepare(voc, size=80)
    record = read_list(voc / "out/bus/train.csv").records[0]
    mask = read_mask(record.mask, 80, 80)
    expected = np.ones((40, 80), np.uint8)
    expected[30:40, :10] = expected[30:40, 70:] = 2  # both wheels have one number
    np.testing.assert_array_equal(mask, np.repeat(expected, 2, axis=0))
    with open_video(record.path) as video:  # red until x = 60 of the image, blue from there
        frame = video.frames([0])[0]
    assert frame.shape == (3, 80, 80)
    assert frame[0, :, :36].min() > 200 > 60 > frame[2, :, :36].max()
    assert frame[2, :, 44:].min() > 200 > 60 > frame[0, :, 44:].max()


def test_what_is_refused(voc):
    out = voc / "out"
    with pytest.raises(ConfigError, match="size is 0"):
        prepare(voc, size=0)
    with pytest.raises(DataError, match=r"no \.mat file in .*Annotations_Part"):
        prepare_pascal_parts(voc / "VOC2010", voc / "VOC2010", out)
    with pytest.raises(DataError, match="no folder JPEGImages in"):
        prepare_pascal_parts(voc, voc / "parts", out)
    with pytest.raises(DataError, match="is not empty"):
        prepare_pascal_parts(voc / "VOC2010", voc / "parts", voc)
    with pytest.raises(DataError, match=r"no object .* is left \(2 images in no split, 4 objects under 90"):
        split(voc, train=["2008_000002"], val=["2008_000003", "2008_000001", "2008_000006"])
        prepare(voc, min_side=90)
    assert not out.exists()
    write(voc, "2008_000002", thing("bus", area(0, 0, 9, 9, (90, 90)), ("door", area(0, 0, 9, 9, (90, 90)))))
    with pytest.raises(DataError, match=r"2008_000002\.mat: the mask of object 1 is 90x90"):
        prepare(voc)


def test_damaged_files(voc):
    whole = (voc / "parts/2008_000001.mat").read_bytes()
    for content in (b"", b"no mat file at all", whole[: len(whole) // 2], b"MATLAB 7.3 MAT-file" + bytes(200)):
        (voc / "parts/2008_000001.mat").write_bytes(content)
        with pytest.raises(DataError, match="or damaged"):
            list(read_annotation(voc / "parts/2008_000001.mat"))
    picture = voc / "VOC2010/JPEGImages/2008_000002.jpg"
    picture.write_bytes(picture.read_bytes()[:200])
    (voc / "parts/2008_000001.mat").write_bytes(whole)
    with pytest.raises(DataError, match=r"2008_000002\.jpg: not an image, or damaged"):
        prepare(voc)
