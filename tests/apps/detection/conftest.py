"""Drawn images with boxes and outlines, in the forms of VOC and COCO."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from vidssl.apps.detection.config import bind_run
from vidssl.apps.detection.prepare_voc_coco_ava import prepare_ava, prepare_coco, prepare_voc
from vidssl.base.config import read
from vidssl.base.keyed_generators import generator

TOY = Path(__file__).parents[3] / "configs" / "detection" / "toy.yaml"
COLOURS = {"disc": (200, 40, 40), "square": (40, 60, 200)}  # RGB


def _draw(folder):
    """Draw eight images of 96x64 or 64x96 pixels, each with two objects that do not touch; write both forms."""
    images, annotations, names = [], [], []
    for number in range(8):
        random = generator(0, number)
        height, width = (64, 96) if number % 3 else (96, 64)
        image = np.full((height, width, 3), 90, np.uint8) + random.integers(0, 30, (height, width, 1), np.uint8)
        halves = [(0, 0), (0, 48)] if width > height else [(0, 0), (48, 0)]
        objects = []
        for kind, (top, left) in zip(random.permutation(list(COLOURS)).tolist(), halves, strict=True):
            side = int(random.integers(20, 30))
            y, x = top + int(random.integers(4, 14)), left + int(random.integers(4, 14))
            angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
            disc = np.stack([np.cos(angles), np.sin(angles)], axis=1) * side / 2 + (x + side / 2, y + side / 2)
            square = np.array([(x, y), (x + side, y), (x + side, y + side), (x, y + side)], float)
            outline = disc if kind == "disc" else square
            ys, xs = np.mgrid[:height, :width] + 0.5 - np.array([y, x])[:, None, None] - side / 2
            image[(np.hypot(xs, ys) if kind == "disc" else np.maximum(abs(xs), abs(ys))) < side / 2] = COLOURS[kind]
            objects.append((kind, (x, y, side, side), outline.ravel().tolist()))
        name = f"{number:03d}"
        names.append(name)
        images.append({"id": number + 10, "file_name": f"{name}.png", "height": height, "width": width})
        xml = f"<filename>{name}.png</filename><size><width>{width}</width><height>{height}</height></size>"
        for kind, (x, y, w, h), outline in objects:
            corners = zip(("xmin", "ymin", "xmax", "ymax"), (x + 1, y + 1, x + w, y + h), strict=True)
            box = "".join(f"<{corner}>{value}</{corner}>" for corner, value in corners)
            xml += f"<object><name>{kind}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
            row = {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0, "segmentation": [outline]}
            at = {"id": len(annotations) + 1, "image_id": number + 10, "category_id": 7 if kind == "disc" else 3}
            annotations.append(at | row)
        for place in ("voc/JPEGImages", "coco/toy"):
            (folder / place).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / place / f"{name}.png"), image[:, :, ::-1])
        (folder / "voc/Annotations").mkdir(exist_ok=True)
        (folder / f"voc/Annotations/{name}.xml").write_text(f"<annotation>{xml}</annotation>")
    (folder / "voc/ImageSets/Main").mkdir(parents=True)
    (folder / "voc/ImageSets/Main/trainval.txt").write_text("\n".join(names) + "\n")
    categories = [{"id": 3, "name": "square"}, {"id": 7, "name": "disc"}]
    (folder / "coco/annotations").mkdir()
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "coco/annotations/instances_toy.json").write_text(json.dumps(content))
    prepare_voc(folder / "voc", folder / "lists/voc")
    prepare_coco(folder / "coco", folder / "lists/coco")


@pytest.fixture(scope="session")
def shapes(made_once):
    """Folder of the drawn set: voc, coco and lists; not to be changed by a test."""
    return made_once("shapes", _draw)


@pytest.fixture(scope="session")
def toy_run(shapes):
    """Bind the toy config on the drawn set: `toy_run(folder, "steps=3")` writes to the folder."""

    def bind(output, *overrides, form="voc"):
        path = shapes / "lists" / form / ("trainval.json" if form == "voc" else "toy.json")
        where = [f"data.train={path}", f"evaluate.list={path}", f"output={output}", "device=cpu"]
        return bind_run(read(TOY, [*where, *overrides]), str(TOY))

    return bind


ACTIONS = {1: "rise", 3: "sink", 7: "be red"}  # numbers with gaps, as AVA's


def _film(folder, write_video):
    """Film 32 videos of 2 s with two discs each that rise or sink, red or blue, and annotate second 901 as AVA does.

    The class of a disc does not follow from its key frame alone: there both kinds are at the same heights.
    """
    rows = {"train": [], "val": []}
    for number in range(32):
        random, name = generator(1, number), f"movie-{number}"
        frames = np.full((24, 64, 96, 3), 90, np.uint8) + random.integers(0, 30, (64, 96, 1), np.uint8)
        for person, left in enumerate((0, 48)):
            side, top = int(random.integers(18, 24)), int(random.integers(18, 26))
            x, up = left + int(random.integers(4, 20)), bool((number + person) % 2)
            red = bool(random.integers(2))
            for t, frame in enumerate(frames):
                y = top + (12 - t if up else t - 12)
                cv2.circle(
                    frame, (x + side // 2, y + side // 2), side // 2, (200, 40, 40) if red else (40, 60, 200), -1
                )
            box = [x / 96, top / 64, (x + side) / 96, (top + side) / 64]
            for action in ([1] if up else [3]) + ([7] if red else []):
                rows["train" if number < 24 else "val"].append([name, "0901", *box, action, person])
        write_video(folder / "videos" / f"{name}.mp4", frames, fps=12)
    official = folder / "annotations"
    official.mkdir()
    for side, persons in rows.items():
        lines = [
            ",".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row) for row in persons
        ]
        (official / f"ava_{side}_v2.2.csv").write_text("\n".join(lines) + "\n")
        (official / f"ava_{side}_excluded_timestamps_v2.2.csv").write_text("another-movie,0904\n")
    labels = "".join(
        f'label {{\n  name: "{name}"\n  label_id: {n}\n  label_type: X\n}}\n' for n, name in ACTIONS.items()
    )
    (official / "ava_action_list_v2.2.pbtxt").write_text(labels)
    items = "".join(f'item {{\n  name: "{name}"\n  id: {n}\n}}\n' for n, name in ACTIONS.items())
    (official / "ava_action_list_v2.2_for_activitynet_2019.pbtxt").write_text(items)
    prepare_ava(folder / "videos", folder / "lists", official)


@pytest.fixture(scope="session")
def movies(made_once, write_video):
    """Folder of the filmed set: videos, annotations, lists; not to be changed by a test."""
    return made_once("movies", lambda folder: _film(folder, write_video))
