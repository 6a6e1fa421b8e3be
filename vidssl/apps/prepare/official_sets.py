"""Lists of HMDB51, Kinetics, Something-Something v2, TrackingNet and UCF101 from their official splits."""

import re
from collections.abc import Collection, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from typing_extensions import Unpack

from vidssl.apps.prepare.match import ListedVideo, MatchOptions, file_names, of_classes, write_matched_lists
from vidssl.base.errors import DataError, first_few
from vidssl.data.read_input import FileIndex, FileMatch, index_files, quoted
from vidssl.data.video_list import decimal_number, read_lines, read_official_json, read_rows


def prepare_hmdb51(
    root: Path, out: Path, splits: Path, *, split_folders: bool = False, **options: Unpack[MatchOptions]
) -> str:
    """HMDB51: train1.csv, test1.csv and so on.

    `root` holds `<class>/<file>.avi`, `splits` holds `<class>_test_split{1,2,3}.txt`.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        splits: Folder testTrainMulti_7030_splits.
        split_folders: Write split1/train.csv, split1/test.csv and so on, as the configs of several splits read them.
        options: See `MatchOptions`.
    """
    files = [match for name in file_names(splits) if (match := re.fullmatch(r"(.+)_test_split(\d+)\.txt", name))]
    if not files:
        raise DataError(f"{splits} has no <class>_test_split1.txt: pass the folder testTrainMulti_7030_splits")
    classes, numbers = (sorted({file[n] for file in files}) for n in (1, 2))
    lists: dict[str, list[ListedVideo]] = {f"{side}{n}": [] for n in numbers for side in ("train", "test")}
    unused = dict.fromkeys(numbers, 0)
    for n, (label, name) in product(numbers, enumerate(classes)):
        for place, line in read_lines(splits / f"{name}_test_split{n}.txt", "every class needs one"):
            match = re.fullmatch(r"(.+?)\s+([012])", line)
            if match is None:
                raise DataError(f"{place}: {line!r} is not '<file> <code>', 0 unused, 1 train, 2 test")
            if match[2] == "0":
                unused[n] += 1
            else:
                side = "train" if match[2] == "1" else "test"
                lists[f"{side}{n}"].append(ListedVideo(place, f"{name}/{match[1]}", label))
    notes = [f"split {n}: {count} unused files" for n, count in unused.items()]
    return write_matched_lists(root, out, lists, classes, [splits], notes=notes, split_folders=split_folders, **options)


_KINETICS_REMEDY = "pass an official CSV; the test list has no labels: use the validation list"
_COLUMNS = ("label", "youtube_id", "time_start", "time_end")


def prepare_kinetics(
    root: Path,
    out: Path,
    train: Path,
    test: Path | None = None,
    classes: Path | None = None,
    *,
    untrimmed: bool = False,
    **options: Unpack[MatchOptions],
) -> str:
    """Kinetics-400, -600 or -700: train.csv, test.csv.

    `root` holds `<id>_<start>_<end>.mp4`, times in six digits, or `<id>.mp4`, in any folders; if several have the file,
    the one named after the class is used. `train` and `test` are the official training and validation lists, CSV with
    the columns `label,youtube_id,time_start,time_end`. Class n is the n-th of the sorted labels of the training list.
    `max_missing` is 0.2 by default.

    With `classes`, a file with one name a line, only these classes are listed. With `untrimmed` the files are whole
    videos `<id>.mp4`, and start and end are written too. Rows that begin before second 0 are named in the report.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        train: Official training list, CSV.
        test: Official validation list, CSV.
        classes: File of classes to keep, one a line.
        untrimmed: Whole videos <id>.mp4: write start and end.
        options: See `MatchOptions`.
    """
    early: dict[str, str] = {}  # by file:line
    files = [(side, path) for side, path in (("train", train), ("test", test)) if path is not None]
    sides = {side: _read_kinetics(path, untrimmed, early) for side, path in files}
    names = sorted({label for label, _ in sides["train"]})
    number, lists = {name: n for n, name in enumerate(names)}, dict[str, list[ListedVideo]]()
    for side, clips in sides.items():
        if unknown := next((clip for clip in clips if clip[0] not in number), None):
            raise DataError(f"{unknown[1].place}: class {unknown[0]!r} is not among the {len(names)} of {train}")
        lists[side] = [video._replace(label=number[label]) for label, video in clips]
    if classes is not None:
        lists, names = of_classes(lists, names, classes)
    notes = []
    # The file of a clip has its times in its name, that of a whole video begins at 0.
    rule = ": listed from 0, those that end before it left out" if untrimmed else ", which the files do not need"
    for side, videos in lists.items():
        if before := [early[video.place] for video in videos if video.place in early]:
            notes.append(f"{side}: {len(before)} rows begin before the video{rule}: {first_few(before)}")
        if classes is not None:
            notes.append(f"{side}: skipped {len(sides[side]) - len(videos)} rows of other classes")
        lists[side] = [video for video in videos if video.end is None or video.end > 0]
    options.setdefault("max_missing", 0.2)
    inputs = [path for path in (train, test, classes) if path is not None]
    find = partial(_find, names, untrimmed)
    return write_matched_lists(root, out, lists, names, inputs, find=find, notes=notes, **options)


def _find(classes: Sequence[str], untrimmed: bool, index: FileIndex, video: ListedVideo) -> FileMatch:
    """The file of a clip or, if it is not there, of the whole video; of an untrimmed set all are whole videos."""
    folders = (classes[video.label], classes[video.label].replace(" ", "_"))
    match = index.find_anywhere(video.name, folders)
    if match.paths or untrimmed:
        return match
    return index.find_anywhere(f"{video.name.rsplit('_', 2)[0]}.mp4", folders)


def _read_kinetics(path: Path, untrimmed: bool, early: dict[str, str]) -> list[tuple[str, ListedVideo]]:
    """Read the class and the file of each row; those that begin before their video are added to `early`."""
    rows = read_rows(path, _KINETICS_REMEDY)
    _, header = next(rows, (1, []))
    if missing := [column for column in _COLUMNS if column not in header]:
        raise DataError(f"{path}:1: header {','.join(header)!r} lacks {' and '.join(missing)}; {_KINETICS_REMEDY}")
    clips = []
    for line, row in rows:
        place, fields = f"{path}:{line}", dict(zip(header, row, strict=False))
        label, name, *times = (fields.get(column, "").strip() for column in _COLUMNS)
        if len(row) > len(header) or not all((label, name, *times)):
            raise DataError(f"{place}: a row needs {', '.join(_COLUMNS)}; quote names with commas")
        try:
            start, end = map(decimal_number, times)
        except ValueError:
            start = end = 0.0
        if not -float("inf") < start < end < float("inf"):
            raise DataError(f"{place}: {times[0]!r} to {times[1]!r} is not a span: seconds, start before end")
        if start < 0:
            early[place] = f"{name!r}, {start:g} to {end:g} s"
        if untrimmed:
            video = ListedVideo(place, f"{name}.mp4", start=max(start, 0.0), end=end)
        else:
            video = ListedVideo(place, f"{name}_{int(start):06d}_{int(end):06d}.mp4")
        clips.append((label, video))
    return clips


def prepare_ssv2(root: Path, out: Path, train: Path, test: Path, labels: Path, **options: Unpack[MatchOptions]) -> str:
    """Something-Something v2: train.csv, test.csv.

    `root` holds `<id>.webm`. `train` and `test` are the official training and validation lists, JSON lists of
    `{id, template, …}`; `labels` is the JSON object from the name of a class to its number, from 0.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        train: Official training list, JSON.
        test: Official validation list, JSON.
        labels: JSON of class names and numbers.
        options: See `MatchOptions`.
    """
    numbers = read_official_json(labels)
    if not isinstance(numbers, dict) or sorted(map(str, numbers.values())) != sorted(map(str, range(len(numbers)))):
        raise DataError(f"{labels} is not an object from the name of each class to its number, from 0")
    numbers = {name: int(number) for name, number in numbers.items()}
    classes = sorted(numbers, key=numbers.__getitem__)
    lists = {side: _ssv2_videos(path, numbers, labels) for side, path in (("train", train), ("test", test))}
    return write_matched_lists(root, out, lists, classes, [train, test, labels], **options)


def _ssv2_videos(path: Path, numbers: dict[str, int], labels: Path) -> list[ListedVideo]:
    items = read_official_json(path)
    if not isinstance(items, list):
        raise DataError(f"{path} is not a list of videos: pass the official training and validation lists")
    videos = []
    for count, item in enumerate(items, 1):
        place = f"{path}: item {count}"
        if not isinstance(item, dict) or not item.get("id") or not isinstance(item.get("template"), str):
            item = str(item)[:60]
            raise DataError(f"{place}: {item!r} has no id or no template, as in the test list: use the validation list")
        name = item["template"].replace("[", "").replace("]", "")
        if name not in numbers:
            raise DataError(f"{place}: class {name!r} is not among the {len(numbers)} of {labels}")
        videos.append(ListedVideo(place, f"{item['id']}.webm", numbers[name]))
    return videos


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
    names = train + ["TEST"] * (root / "TEST").is_dir()
    index = index_files(root, names.__contains__, follow_links=options.get("follow_links", False))
    lists: dict[str, list[ListedVideo]] = {}
    for chunk in names:
        lists.setdefault("test" if chunk == "TEST" else "train", []).extend(_chunk_videos(chunk, index))
    notes = [f"read: {' '.join(names)}"]
    without_boxes = [video.name for videos in lists.values() for video in videos if not Path(video.place).exists()]
    if without_boxes:
        notes.append(f"{len(without_boxes)} sequences without boxes: {quoted(without_boxes)}")
    options.setdefault("fps", 30.0)
    find = lambda index, video: index.find(video.name, any_case=False)  # noqa: E731 - YouTube ids differ in case
    return write_matched_lists(root, out, lists, (), (), index=index, find=find, notes=notes, **options)


def _chunk_videos(chunk: str, index: FileIndex) -> list[ListedVideo]:
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


_REMEDY = "it comes with the splits, in ucfTrainTestlist"


def prepare_ucf101(
    root: Path,
    out: Path,
    splits: Path,
    *,
    classes: Path | None = None,
    split_folders: bool = False,
    **options: Unpack[MatchOptions],
) -> str:
    """UCF101: train1.csv, test1.csv and so on.

    `root` holds `<Class>/v_<Class>_gNN_cNN.avi`, `splits` holds `classInd.txt`, `trainlist0N.txt` and `testlist0N.txt`.
    The class of a video is the folder in its listed path, never its file name.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        splits: Folder ucfTrainTestlist.
        classes: File of classes to keep, one a line.
        split_folders: Write split1/train.csv, split1/test.csv and so on, as the configs of several splits read them.
        options: See `MatchOptions`.
    """
    files = [re.fullmatch(r"(?:train|test)list(\d+)\.txt", name) for name in file_names(splits)]
    numbers = sorted({file[1] for file in files if file})
    if not numbers:
        raise DataError(f"{splits} has no trainlist01.txt: pass the folder ucfTrainTestlist")
    names = _classes(splits / "classInd.txt")
    lists = {
        f"{side}{int(number)}": _videos(splits / f"{side}list{number}.txt", names)
        for number in numbers
        for side in ("train", "test")
    }
    if classes is not None:
        lists, names = of_classes(lists, names, classes)
    inputs = [splits] if classes is None else [splits, classes]
    return write_matched_lists(root, out, lists, names, inputs, split_folders=split_folders, **options)


def _classes(path: Path) -> list[str]:
    classes: list[str] = []
    for place, line in read_lines(path, _REMEDY):
        number, *name = line.split(maxsplit=1)
        if number != str(len(classes) + 1) or not name:
            raise DataError(f"{place}: {line!r} is not '{len(classes) + 1} <Class>': classes count from 1")
        classes += name
    return classes


def _videos(path: Path, classes: list[str]) -> list[ListedVideo]:
    labels = {name.casefold(): n for n, name in enumerate(classes)}
    videos = []
    for place, line in read_lines(path, _REMEDY):
        match = re.fullmatch(r"(([^/]+)/[^/]+?)(?:\s+(\d+))?", line)
        if match is None:
            raise DataError(f"{place}: {line!r} is not '<Class>/<file>' or '<Class>/<file> <number>'")
        name, folder, number = match.groups()
        label = labels.get(folder.casefold())
        if label is None:
            raise DataError(f"{place}: class {folder!r} is not among the {len(classes)} of classInd.txt")
        if number is not None and number.lstrip("0") != str(label + 1):
            raise DataError(f"{place}: {line!r}: classInd.txt has number {label + 1} for {folder}; correct one")
        videos.append(ListedVideo(place, name, label))
    return videos
