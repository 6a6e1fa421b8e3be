"""The video tasks of MTEB (https://github.com/embeddings-benchmark/mteb) on a network of vidssl."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mteb.models import ModelMeta
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from vidssl.api.extract import extract
from vidssl.api.job_arguments import NetworkOptions
from vidssl.atomic import file_hash
from vidssl.errors import ConfigError, DataError
from vidssl.losses import unit
from vidssl.models.initial_weights import load_backbone
from vidssl.models.weights import weights_file
from vidssl.progress import Report

_VIDEOS = 64  # whose files are written to disk at a time


class VideoEncoder:
    """A model for `mteb.evaluate`: the features of `vidssl.extract` of the tasks' video files, compared by cosine.

    `model` is a file, folder or name of a network that vidssl trained, `options` are those of `vidssl.extract`. MTEB
    keeps results by name and revision: they are the file's name, and a hash of the weights. `allow_missing` is not
    among the options: rows would no longer belong to the inputs of a task.

    Raises:
        ConfigError: `allow_missing` is set.
    """

    def __init__(self, model: str | Path, **options: Unpack[NetworkOptions]) -> None:
        if options.get("allow_missing"):
            raise ConfigError("MTEB needs a row for each video: leave out allow_missing=True, and replace broken files")
        self.backbone, self._options = load_backbone(model), options
        about = {
            "name": f"vidssl/{Path(model).stem}",
            "revision": file_hash(weights_file(model))[:16],
            "modalities": ["video"],
            "framework": ["PyTorch"],
            "similarity_fn_name": "cosine",
            "experiment_kwargs": dict(options) or None,
        }
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=about)

    def encode(self, inputs: Any, *, show_progress_bar: bool = True, **_: Any) -> NDArray[np.float32]:
        """Encode the column `video` of the data set of a DataLoader: (N, D)."""
        videos = inputs.dataset.select_columns("video")
        files = videos.cast_column("video", replace(videos.features["video"], decode=False))
        progress: Report = None if show_progress_bar else False
        rows = []
        for start in range(0, len(files), _VIDEOS):
            with tempfile.TemporaryDirectory() as folder:
                batch = files[start : start + _VIDEOS]["video"]
                paths = [_on_disk(video, Path(folder) / str(n)) for n, video in enumerate(batch)]
                found = extract(self.backbone, paths, progress=progress, **self._options)
                if found.missing:
                    raise DataError(f"{found.missing[0][1]}; MTEB needs a row for each video: replace this file")
                rows.append(found.x.numpy())
        return np.concatenate(rows)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosine of each row of one (N, D) to each of the other (M, D): (N, M)."""
        return unit(torch.as_tensor(embeddings1)) @ unit(torch.as_tensor(embeddings2)).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosines of equal rows of both (N, D): (N,)."""
        return (unit(torch.as_tensor(embeddings1)) * unit(torch.as_tensor(embeddings2))).sum(dim=1)


def _on_disk(video: dict[str, Any], path: Path) -> Path:
    """Return the path of a video of a data set, which may hold only the bytes of the file."""
    if video["bytes"] is None:
        return Path(video["path"])
    path.write_bytes(video["bytes"])
    return path
