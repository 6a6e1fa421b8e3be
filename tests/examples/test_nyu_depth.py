"""NYU-Depth-v2 to images, masks and lists: pixels and classes of a small file of the same structure."""

from collections import Counter

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from vidssl.base.keyed_generators import generator
from vidssl.data.video_list import read_list
from vidssl.video.reader import open_video

h5py = pytest.importorskip("h5py")
NAMES = ["wall", "book", "chair", "door", "lamp"]


@pytest.fixture(scope="module", autouse=True)
def names(plug_in):
    """What the tests use of the example."""
    global prepare_nyu_depth, read_mask
    prepare_nyu_depth = plug_in("prepare_nyu_depth").prepare_nyu_depth
    read_mask = plug_in("part_segmentation").read_mask


@pytest.fixture
def nyu(tmp_path):
    """Images (H, W, 3, N) and labels (H, W, N) as MATLAB writes them: HDF5 with its axes reversed."""
    source = generator(0)
    images = source.integers(0, 256, (6, 9, 3, 4), np.uint8)
    labels = source.choice(6, (6, 9, 4), p=[0.2, 0.3, 0.05, 0.25, 0.15, 0.05]).astype(np.uint16)
    labels[0, 0] = 0, 1, 2, 3
    with h5py.File(tmp_path / "labeled.mat", "w") as file:
        file["images"], file["labels"] = images.T, labels.T
        refs = []
        for n, name in enumerate(NAMES):
            file[f"#refs#/{n}"] = np.array([[ord(letter)] for letter in name], np.uint16)
            refs.append(file[f"#refs#/{n}"].ref)
        file.create_dataset("names", data=np.array([refs], dtype=h5py.ref_dtype))
    savemat(tmp_path / "splits.mat", {"trainNdxs": [[3], [1], [4]], "testNdxs": [[2]]})
    return tmp_path, images, labels


def test_images_and_masks_are_those_of_the_file(nyu):
    folder, images, labels = nyu
    report = prepare_nyu_depth(folder / "labeled.mat", folder / "splits.mat", folder / "out", classes=3)
    counts = Counter(labels[:, :, [0, 2, 3]].ravel().tolist())
    kept = sorted(range(1, 6), key=lambda label: -counts[label])[:3]
    fraction = sum(counts[label] for label in kept) / (sum(counts.values()) - counts[0])
    assert f"3 train, 1 test; 3 classes with {100 * fraction:.1f} %" in report
    assert (folder / "out/parts.txt").read_text().split() == [NAMES[label - 1] for label in kept]
    for split, numbers in {"train": [2, 0, 3], "test": [1]}.items():
        records = read_list(folder / f"out/{split}.csv").records
        for record, n in zip(records, numbers, strict=True):
            with open_video(record.path) as video:
                np.testing.assert_array_equal(video.frames([0])[0].transpose(1, 2, 0), images[..., n])
            expected = [[kept.index(label) if label in kept else 255 for label in row] for row in labels[..., n]]
            np.testing.assert_array_equal(read_mask(record.mask, 6, 9), expected)
    assert cv2.imread(str(folder / "out/masks/0001.png"), cv2.IMREAD_UNCHANGED).ndim == 2
