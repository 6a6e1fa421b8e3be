"""Lists of boxes: `vidssl prepare voc` and `coco`, and what is read from them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from vidssl.apps.detection.coco_lists import read_boxes
from vidssl.apps.detection.prepare_voc_coco_ava import prepare_coco, prepare_voc, read_annotation
from vidssl.base.errors import DataError


def test_both_forms_have_the_same_objects(shapes):
    voc = read_boxes([shapes / "lists/voc/trainval.json"])
    coco = read_boxes([shapes / "lists/coco/toy.json"])
    assert voc.classes == ("disc", "square") and coco.classes == ("square", "disc")
    assert len(voc) == len(coco) == 8 and np.array_equal(voc.objects["box"], coco.objects["box"])
    assert [voc.classes[n] for n in voc.objects["category"]] == [coco.classes[n] for n in coco.objects["category"]]
    assert voc.outlines is None and coco.outlines is not None and voc.fingerprint != coco.fingerprint
    assert voc.records[3].path == str(shapes / "voc/JPEGImages/003.png")


def test_voc_counts_pixels_from_one_and_includes_the_far_edges(tmp_path):
    box = "<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>10</xmax><ymax>12.5</ymax></bndbox>"
    objects = f"<object><name> cat </name>{box}</object><object><name>dog</name><difficult>1</difficult>{box}</object>"
    (tmp_path / "a.xml").write_text(
        f"<annotation><size><height>20</height><width>20</width></size>{objects}</annotation>"
    )
    image, (cat, dog), _ = read_annotation(tmp_path / "a.xml", Path("VOC2007"))
    assert image == {"file_name": "VOC2007/JPEGImages/a.jpg", "height": 20, "width": 20}
    assert cat == {"category_id": "cat", "bbox": [0, 2, 10, 10.5], "area": 105, "iscrowd": 0}
    assert dog["difficult"] == dog["iscrowd"] == 1


def test_years_are_lists_and_can_be_joined(shapes, tmp_path):
    for year in ("VOC2007", "VOC2012"):
        shutil.copytree(shapes / "voc", tmp_path / "kit" / year)
    prepare_voc(tmp_path / "kit", tmp_path / "lists")
    names = [tmp_path / f"lists/voc{year}_trainval.json" for year in (2007, 2012)]
    one, both = read_boxes(names[:1]), read_boxes(names)
    assert len(both) == 16 and np.array_equal(both.objects["box"], np.tile(one.objects["box"], (2, 1)))
    assert both.records[8].path == str(tmp_path / "kit/VOC2012/JPEGImages/000.png")
    assert np.array_equal(both.objects["box"][both.rows_of(9)], one.objects["box"][one.rows_of(1)])


def change(shapes, tmp_path, edit):
    content = json.loads((shapes / "lists/coco/toy.json").read_text())
    edit(content)
    (tmp_path / "list.json").write_text(json.dumps(content))
    (tmp_path / "root.txt").write_text(f"{shapes}/coco\n")
    return tmp_path / "list.json"


def test_crowds_and_difficult_objects(shapes, tmp_path):
    def edit(content):
        rows = content["annotations"]
        rows[0]["iscrowd"] = rows[1]["iscrowd"] = 1  # an image with nothing else
        rows[2] |= {"iscrowd": 1, "difficult": 1}
        rows[4]["bbox"][2] = 0  # no area

    boxes = read_boxes([change(shapes, tmp_path, edit)])
    assert boxes.objects["crowd"].sum() == 2 and boxes.objects["difficult"].sum() == 1 and len(boxes.objects) == 15
    kept = boxes.images_with_objects()
    assert len(kept) == 7 and not kept.objects["crowd"].any() and kept.records[0].path.endswith("001.png")
    assert kept.outlines[0] == boxes.outlines[2] and np.array_equal(
        kept.objects["box"][kept.rows_of(1)], boxes.objects["box"][4:5]
    )


def test_a_list_without_objects(shapes, tmp_path):
    path = change(shapes, tmp_path, lambda content: content["annotations"].clear())
    boxes = read_boxes([path])
    assert boxes.outlines is None is read_boxes([path, path]).outlines and len(boxes) == 8
    with pytest.raises(DataError, match="has no image with an object"):
        boxes.images_with_objects()


def test_boxes_beyond_their_image(shapes, tmp_path, caplog):
    """They are clipped, those that lie outside are left out; a pixel more is rounding, as in COCO's own files."""
    sizes = []

    def edit(content):
        rows, image = content["annotations"], content["images"][0]
        sizes.extend((image["width"], image["height"]))
        rows[0]["bbox"] = [10, 20, 9999, 1e30]
        rows[1]["bbox"] = [-0.5, -0.5, image["width"] + 1, image["height"] + 1]
        rows[2]["bbox"] = [-50, 5, 60, 10]
        rows[3]["bbox"] = [10_000, 5, 20, 20]

    boxes = read_boxes([change(shapes, tmp_path, edit)])
    (width, height), rows = sizes, boxes.objects["box"].tolist()
    assert rows[:3] == [[10, 20, width, height], [-0.5, -0.5, width + 0.5, height + 0.5], [0, 5, 10, 15]]
    assert len(rows) == 15
    assert "boxes that reach beyond their image are clipped: 3" in caplog.text
    assert "boxes without area are left out: 1" in caplog.text


def test_proper_boxes_stay_as_they_are(shapes, movies, caplog):
    """Boxes to the very edge, and AVA's fractions of the frame."""
    read_boxes([shapes / "lists/voc/trainval.json", shapes / "lists/voc/trainval.json"])
    read_boxes([movies / "lists/train.json"])
    assert not caplog.records


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<width>96<", "<width>0<", "its image is 0x64"),
        ("<xmin>", "<xmin>1e999</xmin><xmin>", "the box inf, .* not finite"),
    ],
)
def test_annotations_of_voc_without_a_size_or_box(shapes, tmp_path, old, new, message):
    shutil.copytree(shapes / "voc", tmp_path / "voc")
    xml = tmp_path / "voc/Annotations/001.xml"
    xml.write_text(xml.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=rf"001.xml is not an annotation of VOC: {message}"):
        prepare_voc(tmp_path / "voc", tmp_path / "lists")


def test_images_that_splits_name_twice(shapes, tmp_path):
    shutil.copytree(shapes / "voc", tmp_path / "voc")
    names = tmp_path / "voc/ImageSets/Main/trainval.txt"
    names.write_text(names.read_text() + "003\n003 1\n001\n")
    report = prepare_voc(tmp_path / "voc", tmp_path / "lists")
    assert "trainval: 8 images, 16 objects" in report
    assert "trainval: 3 lines repeat an image, and are dropped: '001', '003', '003'" in report
    one, other = (read_boxes([lists / "trainval.json"]) for lists in (tmp_path / "lists", shapes / "lists/voc"))
    assert one.fingerprint == other.fingerprint


def test_voc_boxes_beyond_their_image_are_reported(shapes, tmp_path):
    shutil.copytree(shapes / "voc", tmp_path / "voc")
    xml = tmp_path / "voc/Annotations/003.xml"
    xml.write_text(xml.read_text().replace("<xmax>", "<xmax>99", 1))
    report = prepare_voc(tmp_path / "voc", tmp_path / "lists")
    assert "warning: boxes of 1 images reach beyond them by more than 1 %: 'JPEGImages/003.png'" in report


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["annotations"][3].update(bbox=[0, 0, 1e308, 1e308]), "box of annotation 4 is not finite"),
        (lambda c: c["annotations"][3].update(bbox=[0, 0, 10**400, 4]), "int too large to convert to float"),
        (lambda c: c["images"][0].update(fps=10**400), "int too large to convert to float"),
        (lambda c: c["annotations"][3].update(bbox=[0, 0, 4]), "is not a list of boxes (ValueError"),
        (lambda c: c["images"][0].update(fps=float("nan")), "fps nan is not above 0"),
        (lambda c: c["annotations"][3].update(area=float("inf")), "area of annotation 4 is not finite"),
        (lambda c: c["images"].append({**c["images"][2], "id": 99}), "'toy/002.png' is listed twice"),
        (lambda c: c.pop("images"), "is not a list of boxes (KeyError: 'images')"),
        (lambda c: c["annotations"][3].update(image_id=99), "KeyError: 99"),
        (lambda c: c["annotations"][3].update(bbox=[0, 0, float("nan"), 4]), "box of annotation 4 is not finite"),
        (lambda c: c["images"][0].update(file_name="../x.png"), "leaves the root"),
        (lambda c: c["images"].append(c["images"][0]), "two images or classes of one id"),
        (lambda c: c.update(images=[], annotations=[]), "has no images"),
    ],
)
def test_errors_are_one_line(shapes, tmp_path, edit, message):
    with pytest.raises(DataError, match=r"^[^\n]*$") as error:
        read_boxes([change(shapes, tmp_path, edit)])
    assert message in str(error.value)


def test_errors_of_prepare(shapes, tmp_path):
    with pytest.raises(DataError, match="nor its folders have ImageSets/Main"):
        prepare_voc(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="no annotations/instances"):
        prepare_coco(tmp_path, tmp_path / "out")
    shutil.copytree(shapes / "voc", tmp_path / "voc")
    (tmp_path / "voc/JPEGImages/005.png").unlink()
    with pytest.raises(DataError, match=r"1 of 8 images are missing in .*JPEGImages/005.png"):
        prepare_voc(tmp_path / "voc", tmp_path / "out")
    (tmp_path / "voc/Annotations/005.xml").write_text("<annotation>")
    with pytest.raises(DataError, match=r"005.xml is not an annotation of VOC"):
        prepare_voc(tmp_path / "voc", tmp_path / "out")
    shutil.copytree(shapes / "lists/voc", tmp_path / "lists")
    with pytest.raises(DataError, match=r"root.txt belongs to other lists"):
        prepare_coco(shapes / "coco", tmp_path / "lists")
