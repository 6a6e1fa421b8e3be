"""COCO's instances to lists of boxes and outlines."""

from pathlib import Path

from vidssl.config import Tree
from vidssl.data.write_lists import check_images
from vidssl.errors import DataError
from vidssl.prepare.match import read_json
from vidssl.projects.detection.lists_with_boxes import check_boxes, write_boxes

_KEPT = {
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
    "categories": ("id", "name"),
}


def prepare_coco(root: Path, out: Path) -> str:
    """COCO, with boxes and outlines: a JSON list for each set.

    Images lie in the folder NAME, or in `images/NAME`. Returns the report.

    Args:
        root: Folder with annotations/.
        out: Folder for what is written.
    """
    files = sorted((root / "annotations").glob("instances_*.json"))
    if not files:
        raise DataError(f"{root} has no annotations/instances_*.json: pass the folder with COCO's annotations")
    check_boxes(out, root, [file.stem.removeprefix("instances_") for file in files])
    lists: dict[str, Tree] = {}
    for file in files:
        name = file.stem.removeprefix("instances_")
        folder = next((folder for folder in (name, f"images/{name}") if (root / folder).is_dir()), None)
        if folder is None:
            raise DataError(f"{root} has no folder {name} for the images of {file.name}: complete it or move the file")
        lists[name] = _list(file, folder)
        check_images(root, [image["file_name"] for image in lists[name]["images"]], str(file))
    write_boxes(out, root, lists)
    return "\n".join(
        f"{name}: {len(content['images'])} images, {len(content['annotations'])} objects, "
        f"{len(content['categories'])} classes"
        for name, content in lists.items()
    )


def _list(file: Path, folder: str) -> Tree:
    content = read_json(file)
    try:
        kept = {
            part: [{key: row[key] for key in keys if key in row} for row in content[part]]
            for part, keys in _KEPT.items()
        }
        for image in kept["images"]:
            image["file_name"] = f"{folder}/{image['file_name']}"
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} is not an annotation file of COCO: {type(error).__name__}: {error}") from None
    return kept
