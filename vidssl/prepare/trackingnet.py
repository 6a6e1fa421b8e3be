"""TrackingNet: sequences of frames without classes, in chunks, with one box for each frame."""

from collections.abc import Collection
from pathlib import Path

from typing_extensions import Unpack

from vidssl.data.read_input import FileIndex, FileMatch, index_files, quoted
from vidssl.errors import DataError
from vidssl.prepare.annotation_files import file_names, read_lines
from vidssl.prepare.match import ListedVideo, MatchOptions, write_matched_lists


def prepare_trackingnet(
    root: Path, out: Path, *, chunks: Collection[int] | None = None, **options: Unpack[MatchOptions]
) -> str:
    """TrackingNet, without labels: train.csv, test.csv if TEST exists.

    `root` holds `TRAIN_<n>/frames/<sequence>/<frame>.jpg`, `TRAIN_<n>/anno/<sequence>.txt` with a line for each frame,
    and `TEST` with a line for each sequence. A sequence is listed if it has boxes or frames. `chunks` are the numbers
    of the training chunks (None: all that exist). `fps` is 30 by default, which most of the original videos have.

    Args:
        root: Folder with TRAIN_0 and so on.
        out: Folder for what is written.
        chunks: Training chunks (default all).
        options: See `MatchOptions`.
    """
    if chunks is None:
        numbers = (path.name.removeprefix("TRAIN_") for path in root.glob("TRAIN_*"))
        chunks = [int(number) for number in numbers if number.isdecimal()]
    train = [f"TRAIN_{n}" for n in sorted({*chunks})]
    missing = [name for name in train or ["TRAIN_0"] if not (root / name).exists()]
    if missing:
        raise DataError(f"{root} has no {quoted(missing)}: it needs TRAIN_<n>/frames and TRAIN_<n>/anno")
    folders = {"train": train, **({"test": ["TEST"]} if (root / "TEST").is_dir() else {})}
    names = [name for side in folders.values() for name in side]
    index = index_files(root, names.__contains__, follow_links=options.get("follow_links", False))
    lists = {
        side: [video for chunk in side_chunks for video in _videos(chunk, index)]
        for side, side_chunks in folders.items()
    }
    notes = [f"read: {' '.join(names)}"]
    without_boxes = [video.name for videos in lists.values() for video in videos if not Path(video.place).exists()]
    if without_boxes:
        notes.append(f"{len(without_boxes)} sequences without boxes: {quoted(without_boxes)}")
    options.setdefault("fps", 30.0)

    def find(index: FileIndex, video: ListedVideo) -> FileMatch:
        return index.find(video.name, any_case=False)  # sequences are named by YouTube ids, which differ in case

    return write_matched_lists(root, out, lists, (), (), index=index, find=find, notes=notes, **options)


def _videos(chunk: str, index: FileIndex) -> list[ListedVideo]:
    boxes, frames = index.root / chunk / "anno", f"{chunk}/frames/"
    files = file_names(boxes) if boxes.is_dir() else []
    annotated = {name.removesuffix(".txt") for name in files if name.endswith(".txt")}
    with_frames = {path.removeprefix(frames) for path in index.image_folders if path.startswith(frames)}
    videos = []
    for name in sorted(annotated | with_frames):
        file, num_frames = boxes / f"{name}.txt", None
        if name in annotated and chunk != "TEST":  # there a file has one line
            num_frames = sum(1 for _ in read_lines(file, "delete it, or download it again"))
        videos.append(ListedVideo(str(file), frames + name, num_frames=num_frames))
    return videos
