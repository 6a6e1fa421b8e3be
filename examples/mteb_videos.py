"""A network on the video tasks of MTEB, the embedding benchmark: mteb, datasets and torchcodec, Python 3.11 or newer.

python examples/mteb_videos.py vidssl-small UCF101VideoClustering       # downloads the videos of the task
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import mteb
import torch
from mteb.models import ModelMeta

import datasets
import vidssl


class VideoEncoder:
    """A model for `mteb.evaluate`: features of `vidssl.extract` and their cosines; `options` are those of `extract`."""

    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = model, options
        about = {"name": f"vidssl/{Path(model).stem}", "modalities": ["video"], "framework": ["PyTorch"]}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=about)

    def encode(self, inputs: Any, **_: Any) -> Any:
        """Encode the videos of a task, which are paths or the bytes of files: (N, D)."""
        videos = inputs.dataset.select_columns("video").cast_column("video", datasets.Video(decode=False))["video"]
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(video["path"] or f"{folder}/{n}") for n, video in enumerate(videos)]
            for path, video in zip(paths, videos, strict=True):
                if video["path"] is None:
                    path.write_bytes(video["bytes"])
            return vidssl.extract(self.model, paths, **self.options).x.numpy()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Compute the cosine of each row of the first (N, D) to each of the second (M, D): (N, M)."""
        x, y = (torch.nn.functional.normalize(torch.as_tensor(rows), dim=-1) for rows in (embeddings1, embeddings2))
        return x @ y.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Compute the cosines of equal rows of both (N, D): (N,)."""
        return torch.cosine_similarity(torch.as_tensor(embeddings1), torch.as_tensor(embeddings2))


if __name__ == "__main__":
    # MTEB keeps results by the name of a model: without a cache no other weights of this name are taken for these.
    print(mteb.evaluate(VideoEncoder(sys.argv[1]), mteb.get_tasks(sys.argv[2:]), cache=None))
