"""Features of a list, into a file."""

from pathlib import Path

import numpy as np

from vidssl.data.records import read_list
from vidssl.errors import DataError
from vidssl.evaluation.features import extract
from vidssl.jobs.backbones import Options, load_subject


def extract_features(options: Options, videos: Path, out: Path) -> tuple[int, int]:
    """Write the features of a list as an npz file.

    Its arrays: `features` (N, D) float32, `label` (N,) and `index` (N,) int64, `path` (N,) strings as in the
    list.

    Args:
        options: Which backbone, which clips.
        videos: The list.
        out: The file; its folder is made.

    Returns:
        (N, D).

    Raises:
        DataError: A video cannot be used, or the file cannot be written.
    """
    listed = read_list(videos, options.root, options.allow_external)
    subject = load_subject(options)
    features = extract(subject.backbone, listed, subject.test, subject.device)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(out, "wb") as file:  # a file, for numpy would add a suffix to a name
            np.savez(
                file,
                features=features.x.numpy(),
                label=features.label.numpy(),
                index=features.index.numpy(),
                path=np.array([listed.names[i] for i in features.index.tolist()]),
            )
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror}") from None
    return len(features.x), features.x.shape[1]
