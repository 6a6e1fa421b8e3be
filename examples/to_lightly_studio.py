r"""A LightlyStudio dataset of videos with the features of vidssl.

pip install lightly-studio                       # in an environment of its own: it needs pandas 2
vidssl extract my_videos --checkpoint vidssl-small --out features
python examples/to_lightly_studio.py features my_videos
"""

import sys
from pathlib import Path

import lightly_studio as ls
import numpy as np
from lightly_studio_serve.embedder import VideoPathEmbedder

from vidssl.jobs.extract import loaded


class Stored(VideoPathEmbedder):
    """Gives LightlyStudio the features of a folder of `vidssl extract`, by absolute path."""

    def __init__(self, features):
        self._name, self._x = str(features.path), features.x.numpy()
        self._row = {record.path: row for row, record in enumerate(features.records)}

    def embedding_space_spec(self):
        """Name the features; those of another folder are not comparable."""
        return ls.EmbeddingSpaceSpec(space_key=f"vidssl/{self._name}", dimension=self._x.shape[1])

    def embed_videos(self, paths):
        """Look up the features of files; others are skipped."""
        indices = [n for n, path in enumerate(paths) if path in self._row]
        rows = np.array([self._row[paths[n]] for n in indices], np.int64)
        return ls.EmbeddingResult(embeddings=self._x[rows], kept_indices=indices)


if __name__ == "__main__":
    ls.register_default_embedder(Stored(loaded(Path(sys.argv[1]))))  # before the videos are added
    dataset = ls.VideoDataset.load_or_create("vidssl")
    dataset.add_videos_from_path(sys.argv[2], embed_frames=False)
    ls.start_gui()
