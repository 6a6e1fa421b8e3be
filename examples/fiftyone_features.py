r"""Features of the videos of a FiftyOne dataset, and the similarity index and map that FiftyOne's app shows.

pip install fiftyone                             # in an environment of its own: it brings another build of OpenCV
python examples/fiftyone_features.py my_dataset --model vidssl-small
fiftyone app launch my_dataset                   # sort by similarity, and the panel Embeddings
"""

import argparse
from typing import Any

import fiftyone as fo
import fiftyone.brain as fob

import vidssl

FIELD = "vidssl"  # of the samples, and the prefix of the brain keys


def add_features(dataset: Any, model: str, **options: Any) -> tuple[tuple[str, str], ...]:
    """Store the features of each video in a field of its sample; `options` are those of `vidssl.extract`.

    Videos that cannot be decoded have None; their paths and the reasons are returned.
    """
    paths = dataset.values("filepath")
    features = vidssl.extract(model, paths, allow_missing=True, **options)
    vectors: list[Any] = [None] * len(paths)
    for index, vector in zip(features.index.tolist(), features.x.numpy(), strict=True):
        vectors[index] = vector
    dataset.set_values(FIELD, vectors)
    return features.missing


def main() -> None:
    """Add the features, an index for similarity, and a map in two dimensions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name of a FiftyOne dataset of videos")
    parser.add_argument("--model", default="vidssl-small", help="checkpoint, exported folder or name of a network")
    parsed = parser.parse_args()
    dataset = fo.load_dataset(parsed.dataset)
    for path, reason in add_features(dataset, parsed.model):
        print(f"left out: {path}: {reason}")
    with_features = dataset.exists(FIELD)
    fob.compute_similarity(with_features, embeddings=FIELD, brain_key=f"{FIELD}_similarity", backend="sklearn")
    fob.compute_visualization(with_features, embeddings=FIELD, brain_key=f"{FIELD}_map", method="pca")


if __name__ == "__main__":
    main()
