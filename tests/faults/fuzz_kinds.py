"""Kinds of files that vidssl reads: each with seeds, the mutation that fits it, and what reads them.

A kind builds its files in a folder, names those that are changed, and reads the folder after one was changed. Reading
returns, or raises a VidsslError: anything else is a finding.
"""

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import cv2
import mutate
import numpy as np
import torch

from vidssl.apps.check.file_defects import check_video
from vidssl.apps.detection.coco_lists import read_boxes
from vidssl.apps.detection.prepare_voc_coco_ava import prepare_coco
from vidssl.apps.export import save_backbone
from vidssl.apps.prepare.folder import prepare_folder
from vidssl.apps.prepare.other_projects import prepare_list
from vidssl.base.errors import VidsslError
from vidssl.base.types import Tracks, VideoMeta
from vidssl.data.list_identity import identify
from vidssl.data.read_input import read_input
from vidssl.data.read_instance_boxes import read_instance_boxes as read_instances
from vidssl.data.track_files import read_tracks, write_tracks
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.jobs.load_network import load_subject
from vidssl.models import build_backbone, load_backbone
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT
from vidssl.tracking.proposals import read_proposals, write_proposals
from vidssl.video import packet_index as index
from vidssl.video.packed_frames import ID_BYTES, INDEX, PackedVideo, link_field, write_index
from vidssl.video.reader import MAX_PIXELS, open_video

FILES = Path(__file__).parents[1] / "video" / "files"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "containers"
Mutate = Callable[[np.random.Generator, bytes, list[bytes]], bytes]


class Kind(NamedTuple):
    """Files of a kind: `build` writes them and names those to change, `read` reads them after `name` was changed."""

    build: Callable[[Path], Sequence[str]]
    mutate: Mutate
    read: Callable[[Path, str], None]


def _fresh(out: Path) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    return out


# Videos -----------------------------------------------------------------------------------------------------

# Name, codec, B-frames. FFmpeg writes each with the encoder of this name.
_WRITTEN = (
    *(
        ("h264.mp4", "libx264", 0),
        ("b_frames.mp4", "libx264", 2),
        ("h264.mkv", "libx264", 2),
        ("h264.ts", "libx264", 2),
    ),
    *(("mpeg4.avi", "mpeg4", 0), ("hevc.mp4", "libx265", 2), ("mpeg4.mov", "mpeg4", 2), ("mjpeg.avi", "mjpeg", 0)),
    *(("vp8.webm", "libvpx", 0), ("vp9.webm", "libvpx-vp9", 0), ("mpeg2.mpg", "mpeg2video", 2), ("a.gif", "gif", 0)),
    *(("flv1.flv", "flv", 0), ("wmv2.wmv", "wmv2", 0), ("h264.h264", "libx264", 0), ("theora.ogv", "libtheora", 0)),
    ("h264.flv", "libx264", 0),
)
_FORMATS = {"gif": "rgb8", "mjpeg": "yuvj420p"}


def write_video(path: Path, codec: str, b_frames: int, size: int = 48, count: int = 12) -> None:
    """Write a video of a moving square; without the encoder the file is left out."""
    x264 = {"preset": "ultrafast", "crf": "30", "x264-params": f"keyint=6:bframes={b_frames}:b-adapt=0"}
    options = {"libx264": x264, "libx265": {"preset": "ultrafast", "x265-params": "keyint=6:log-level=none"}}
    if codec not in av.codecs_available:
        return
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options.get(codec, {"g": "6"}))
        stream.width, stream.height, stream.pix_fmt = size + 16, size, _FORMATS.get(codec, "yuv420p")
        stream.codec_context.max_b_frames = b_frames
        for number in range(count):
            pixels = np.full((size, size + 16, 3), 60, np.uint8)
            pixels[8:24, 2 * number : 2 * number + 16] = 200
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _build_videos(folder: Path) -> list[str]:
    for name, codec, b_frames in _WRITTEN:
        write_video(folder / name, codec, b_frames)
    fragmented = {"movflags": "frag_keyframe+empty_moov"}
    with av.open(str(folder / "h264.mp4")) as source:
        with av.open(str(folder / "fragmented.mp4"), "w", options=fragmented) as copy:
            stream = copy.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    copy.mux(packet)
    others = [*FILES.glob("*.avi"), *(path for path in sorted(SHARED.glob("*")) if path.stat().st_size < 100_000)]
    for path in others:
        (folder / path.name).write_bytes(path.read_bytes())
    return sorted(path.name for path in folder.iterdir())


def _watch(path: Path, whole: bool) -> None:
    with open_video(path) as video:
        count = video.meta.num_frames
        expected = sorted({0, count // 2, count - 1})
        frames = video.frames(expected)
        assert frames.dtype == np.uint8 and frames.shape[:2] == (len(expected), 3) and frames.flags.aligned
        for image in video.iter_frames() if whole else ():
            assert image.shape == (*frames.shape[2:], 3)


def _read_video(folder: Path, name: str) -> None:
    path = folder / name
    state = path.stat().st_size
    if state % 3 == 0:
        _, faults = check_video(path, 1.0, MAX_PIXELS, lambda: None)
        assert all("\n" not in reason for _, reason in faults)
    _watch(path, state % 3 == 1)


# Lists ------------------------------------------------------------------------------------------------------


def _build_list(folder: Path) -> list[str]:
    (folder / "videos").mkdir()
    write_video(folder / "videos" / "a.mp4", "libx264", 0)
    (folder / "videos" / "b.mp4").write_bytes((folder / "videos" / "a.mp4").read_bytes())
    (folder / "root.txt").write_text(f"{folder / 'videos'}\n")
    (folder / "classes.txt").write_text("run\nwalk\n")
    (folder / "list.csv").write_text("path,label,start,end,fps\na.mp4,0,0.0,0.3,\nb.mp4,1,0.1,0.4,25\n")
    (folder / "several.csv").write_text("path,labels,x,y\na.mp4,0 1?,3,4\nb.mp4,,1,2.5\n")
    (folder / "boxes.csv").write_text("path,frame,x1,y1,x2,y2\na.mp4,0,1,2,10,20\na.mp4,1,1,2.5,10,20\n")
    (folder / "other.txt").write_text("a.mp4 0\nb.mp4 1\n")
    (folder / "labels.csv").write_text("path,label,person\na.mp4,run,p1\nb.mp4,walk,p2\n")
    return ["list.csv", "several.csv", "root.txt", "classes.txt", "boxes.csv", "other.txt", "labels.csv"]


def _read_list(folder: Path, name: str) -> None:
    if name == "other.txt":
        prepare_list(folder / name, "slowfast", folder / "videos", _fresh(folder / "out"))
        return
    if name == "labels.csv":
        prepare_folder(folder / "videos", _fresh(folder / "out"), labels=folder / name)
        return
    listed = read_list(folder / (name if name == "several.csv" else "list.csv"))
    assert len(listed.fingerprint) == 64 and len(listed) == len(listed.labels) == len(listed.names)
    identify(listed)
    assert listed.targets is None or len(listed.targets) == len(listed)
    for record in listed.records:
        listed.class_name(record.label)
        open_video(record.path).close()
    if name == "boxes.csv":
        read_instances(folder / name, listed)


# Lists of boxes ---------------------------------------------------------------------------------------------


def _coco(images: Sequence[str], **more: Any) -> dict[str, Any]:
    return {
        "images": [
            {"id": n, "file_name": name, "height": 48, "width": 64, **{key: value[n] for key, value in more.items()}}
            for n, name in enumerate(images)
        ],
        "annotations": [
            {"id": 1, "image_id": 0, "category_id": 1, "bbox": [1, 2, 10, 20], "area": 200, "iscrowd": 0},
            {"id": 2, "image_id": 1, "category_id": 2, "bbox": [1.5, 2, 10, 20], "segmentation": [[1, 2, 9, 2, 9, 9]]},
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }


def _build_boxes(folder: Path) -> list[str]:
    for name in ("images/a.jpg", "images/b.jpg", "coco/train/a.jpg", "coco/train/b.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), np.zeros((48, 64, 3), np.uint8))
    (folder / "root.txt").write_text(f"{folder / 'images'}\n")
    (folder / "boxes.json").write_text(json.dumps(_coco(["a.jpg", "b.jpg"])))
    frames = {**_coco(["a.mp4", "b.mp4"], time=[0.2, 0.3]), "proposals": [{"image_id": 0, "bbox": [1, 2, 3, 4]}]}
    (folder / "frames.json").write_text(json.dumps(frames))
    (folder / "coco" / "annotations").mkdir()
    (folder / "coco/annotations/instances_train.json").write_text(json.dumps(_coco(["a.jpg", "b.jpg"])))
    return ["boxes.json", "frames.json", "coco/annotations/instances_train.json"]


def _read_boxes(folder: Path, name: str) -> None:
    if name.startswith("coco"):
        prepare_coco(folder / "coco", _fresh(folder / "out"))
        return
    boxes = read_boxes([folder / name])
    corners, areas = boxes.objects["box"], boxes.objects["area"]
    assert np.isfinite(corners).all() and np.isfinite(areas).all() and len(boxes.ends) == len(boxes) + 1
    assert (corners[:, 2:] > corners[:, :2]).all() and len(boxes.fingerprint) == 64
    assert np.isfinite(boxes.sizes).all() and (boxes.sizes < 2**31).all()
    boxes.images_with_objects()


# Networks and configs ---------------------------------------------------------------------------------------

_TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
_SMALL = ["backbone.width=4", "method.classes=2", "data.workers=0", "data.moving_digits=null", "data.train=list.csv"]


def _checkpoint() -> dict[str, Any]:
    run = load_run(_TOY, _SMALL)
    backbone = build_backbone("resnet3d18", width=4)
    method = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    method |= {"classifier.weight": torch.zeros(2, backbone.dim), "classifier.bias": torch.zeros(2)}
    content = {"format": CHECKPOINT_FORMAT, "step": 12, "config": run.model_dump(mode="json"), "method": method}
    return {**content, "optimizer": {}, "rng": [], "versions": {}, "classes": ["run", "walk"], "fingerprint": "0"}


def _build_networks(folder: Path) -> list[str]:
    torch.manual_seed(0)
    torch.save(_checkpoint(), folder / "last.pt")
    torch.save({"state_dict": build_backbone("resnet3d18", width=4).state_dict()}, folder / "other.pth")
    torch.save({"state_dict": {"a.b": torch.zeros(3)}}, folder / "old.pt", _use_new_zipfile_serialization=False)
    save_backbone(folder / "last.pt", folder / "small.safetensors")
    load_backbone(folder / "other.pth")  # compares it with all backbones: their shapes are kept for all children
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_bytes((folder / "small.safetensors").read_bytes())
    return ["last.pt", "other.pth", "old.pt", "small.safetensors", "model/model.safetensors"]


def _mutate_network(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    if content[8:10] == b'{"':
        return mutate.mutate_safetensors(random, content, others)
    if random.random() < 0.3:
        return mutate.mutate_bytes(random, content, others)
    tree = torch.load(io.BytesIO(content), weights_only=True)
    part = "config" if "config" in tree and random.random() < 0.6 else None
    if part:
        tree[part] = mutate.mutate_tree(random, tree[part])
    else:
        tree = mutate.mutate_tree(random, tree)
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue()


def _read_network(folder: Path, name: str) -> None:
    file = folder / name
    path = str(file.parent if name.startswith("model/") else file)
    refused = 0
    for read in (
        lambda: _encode(load_backbone(path)),
        lambda: _encode(load_subject(path, {"device": "cpu"}).backbone),
        lambda: save_backbone(path, folder / "out.safetensors"),
    ):
        try:
            read()
        except VidsslError as error:
            refused += 1
            assert str(error)
    if refused == 3:
        raise VidsslError("refused by all")


def _encode(backbone: Any) -> None:
    # Weights may be anything that is finite, so features may be infinite; they have a shape.
    with torch.no_grad():
        backbone.eval()(torch.zeros(1, 3, 2, 16, 16))


# Archives of videos and packed frames -----------------------------------------------------------------------


def _build_tars(folder: Path) -> list[str]:
    write_video(folder / "a.mp4", "libx264", 2)
    for kind, name in (
        (tarfile.USTAR_FORMAT, "ustar.tar"),
        (tarfile.PAX_FORMAT, "pax.tar"),
        (tarfile.GNU_FORMAT, "gnu.tar"),
    ):
        with tarfile.open(folder / name, "w", format=kind) as tar:
            for member in ("a.mp4", "sub/b.mp4", "é" * 40 + ".mp4"):
                tar.add(folder / "a.mp4", member, filter=lambda entry: entry.replace(mtime=0, uid=0, gid=0, deep=False))
    return ["ustar.tar", "pax.tar", "gnu.tar"]


def _read_tar(folder: Path, name: str) -> None:
    listed = read_input(folder / name)
    identify(listed)
    for record in listed.records[:3]:
        _watch(Path(record.path), False)


def _build_packed(folder: Path) -> list[str]:
    offsets, sizes = list[int](), list[int]()
    first, shard_id = tarfile.TarInfo("a"), bytes(range(ID_BYTES))
    first.linkname = link_field(shard_id)
    content = first.tobuf(tarfile.USTAR_FORMAT)
    for number in range(8):
        image = cv2.imencode(".jpg", np.full((48, 64, 3), 20 * number, np.uint8))[1].tobytes()
        offsets.append(len(content))
        sizes.append(len(image))
        content += image
    (folder / "shard-000000.tar").write_bytes(content)
    # The first video has a variable rate: the times of its frames, and their end.
    variable = VideoMeta(5, 25.0, 48, 64, None, np.array([0, 0.1, 0.3, 0.4, 0.5]), 0.6)
    places = np.array(offsets, np.int64), np.array(sizes, np.uint32)
    videos = {
        b"b/x.mp4": PackedVideo(variable, 1, 0, places[0][:5], places[1][:5]),
        b"a.mp4": PackedVideo(VideoMeta(3, 10.0, 48, 64), 2, 0, places[0][5:], places[1][5:]),
    }
    write_index(folder / INDEX, videos, {0: shard_id})
    return [INDEX, "shard-000000.tar"]


def _mutate_packed(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    return (mutate.mutate_safetensors if content[8:10] == b'{"' else mutate.mutate_bytes)(random, content, others)


def _read_packed(folder: Path, name: str) -> None:
    listed = read_input(folder)
    identify(listed)
    for record in listed.records[:4]:
        _watch(Path(record.path), True)


# What vidssl writes for itself ------------------------------------------------------------------------------


def _build_caches(folder: Path) -> list[str]:
    write_video(folder / "a.mp4", "libx264", 2)
    open_video(folder / "a.mp4", cache=folder / "cache").close()
    index._cache.clear()
    boxes = np.array([[1, 2, 10, 20], [1, 2, 12, 20]], np.float32)
    tracks = Tracks(np.array([0, 1]), boxes, np.array([0.5, 0.5], np.float32), np.array([0, 0]))
    write_tracks(folder / "tracks.npz", tracks, {"a": 1})
    write_proposals(folder / "proposals.npz", "key", np.array([0, 3]), [boxes, boxes[:1]])
    cached = [path.relative_to(folder).as_posix() for path in (folder / "cache").rglob("*.npz")]
    return [*cached, *cached, "tracks.npz", "proposals.npz"]


def _mutate_arrays(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    """Change the arrays of an npz, of which the checksums of the zip would tell other changes."""
    if b"frame_of" in content or random.random() < 0.3:  # the packet index of a video has a checksum
        return mutate.mutate_bytes(random, content, others)
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    names = [*arrays]
    for _ in range(int(random.integers(1, 3))):
        name = names[int(random.integers(len(names)))]
        array = arrays.pop(name, np.zeros(0))
        match int(random.integers(6)):
            case 0:
                arrays[name] = array[: len(array) // 2] if array.ndim else array
            case 1:
                arrays[name] = np.resize(array, (*array.shape, 2))
            case 2:
                arrays[name] = np.array(str(mutate.mutate_tree(random, None)).encode("utf-8", "replace").decode())
            case 3 if array.size and array.dtype.kind in "if":
                changed = array.copy().reshape(-1)
                changed[int(random.integers(changed.size))] = random.choice([-1, -2, 0, 7, 2**30])
                arrays[name] = changed.reshape(array.shape)
            case 4:
                arrays[name] = array.astype(np.float64 if array.dtype.kind in "if" else array.dtype)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _read_cache(folder: Path, name: str) -> None:
    if name == "tracks.npz":
        read_tracks(folder / name)
    elif name == "proposals.npz":
        actual = read_proposals(folder / name, "key", np.array([0, 3]))
        assert actual is None or all(boxes.ndim == 2 and boxes.shape[1] == 4 for boxes in actual)
    else:
        index._cache.clear()
        with open_video(folder / "a.mp4", cache=folder / "cache") as video:
            video.frames([0, 11, 5])


KINDS = {
    "videos": Kind(_build_videos, mutate.mutate_bytes, _read_video),
    "lists": Kind(_build_list, mutate.mutate_text, _read_list),
    "boxes": Kind(_build_boxes, mutate.mutate_json, _read_boxes),
    "networks": Kind(_build_networks, _mutate_network, _read_network),
    "tars": Kind(_build_tars, mutate.mutate_bytes, _read_tar),
    "packed": Kind(_build_packed, _mutate_packed, _read_packed),
    "caches": Kind(_build_caches, _mutate_arrays, _read_cache),
}
