"""HMDB51: one text file for each class and split, with code 0 (unused), 1 (train) or 2 (test) for each video."""

import re
from pathlib import Path

from typing_extensions import Unpack

from vidssl.errors import DataError
from vidssl.prepare.annotation_files import file_names, read_lines
from vidssl.prepare.match import ListedVideo, MatchOptions, write_matched_lists


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
    files = [found for name in file_names(splits) if (found := re.fullmatch(r"(.+)_test_split(\d+)\.txt", name))]
    if not files:
        raise DataError(f"{splits} has no <class>_test_split1.txt: pass the folder testTrainMulti_7030_splits")
    classes, numbers = (sorted({file[n] for file in files}) for n in (1, 2))
    lists: dict[str, list[ListedVideo]] = {f"{side}{n}": [] for n in numbers for side in ("train", "test")}
    unused = dict.fromkeys(numbers, 0)
    for n in numbers:
        for label, name in enumerate(classes):
            for place, line in read_lines(splits / f"{name}_test_split{n}.txt", "every class needs one"):
                file, *code = line.rsplit(maxsplit=1)
                if code not in (["0"], ["1"], ["2"]):
                    raise DataError(f"{place}: {line!r} is not '<file> <code>', 0 unused, 1 train, 2 test")
                if code == ["0"]:
                    unused[n] += 1
                    continue
                lists[f"{'train' if code == ['1'] else 'test'}{n}"].append(ListedVideo(place, f"{name}/{file}", label))
    notes = [f"split {n}: {count} unused files" for n, count in unused.items()]
    return write_matched_lists(root, out, lists, classes, [splits], notes=notes, split_folders=split_folders, **options)
