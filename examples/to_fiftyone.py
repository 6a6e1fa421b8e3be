r"""A FiftyOne dataset of the videos of a map, with labels, features, similarity and the same map.

pip install fiftyone                             # in an environment of its own: it brings another build of OpenCV
vidssl map my_videos --checkpoint vidssl-small --out output/map --to parquet
python examples/to_fiftyone.py output/map my_dataset && fiftyone app launch my_dataset
"""

import json
import sys
from pathlib import Path

import fiftyone as fo
import fiftyone.brain as fob
import numpy as np
import pandas as pd


def main(folder: Path, name: str) -> None:
    """Make the dataset of the folder of a map."""
    table = pd.read_parquet(folder / "videos.parquet")
    features = np.load(Path(json.loads((folder / "results.json").read_text())["features"]) / "features.npy")
    samples = []
    for path, label in zip(table["path"], table["label"], strict=True):
        sample = fo.Sample(path)
        if isinstance(label, str):  # not null
            sample["label"] = fo.Classification(label=label)
        samples.append(sample)
    dataset = fo.Dataset(name, persistent=True)
    dataset.add_samples(samples)
    dataset.set_values("vidssl", [*features])
    fob.compute_similarity(dataset, embeddings="vidssl", brain_key="vidssl_similarity", backend="sklearn")
    fob.compute_visualization(dataset, points=table[["x", "y"]].to_numpy(), brain_key="vidssl_map", method="manual")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
