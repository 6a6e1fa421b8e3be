"""Features of a list, into a file."""

from pathlib import Path

import numpy as np

from vidssl.data.records import read_list
from vidssl.errors import DataError
from vidssl.evaluation.features import extract
from vidssl.jobs.backbones import Options, load_subject
from vidssl.types import Features


def extract_features(options: Options, videos: Path, out: Path) -> Features:
    """Write the features of a list as an npz file.

    Its arrays: `features` (N, D) float32, `label` (N,) and `index` (N,) int64, `path` (N,) strings as in the
    list, `missing` (M, 2) strings: path and reason of the videos that were left out.

    Args:
        options: Which backbone, which clips.
        videos: The list.
        out: The file; its folder is made.

    Returns:
        What is in the file.

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
                missing=np.array(features.missing, dtype=np.str_).reshape(-1, 2),
            )
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror}") from None
    return features
