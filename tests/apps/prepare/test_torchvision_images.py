"""Image sets of torchvision as PNG files and lists: sets in torchvision's own formats, interrupted runs, errors."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from vidssl.apps.prepare import prepare_moving_digits, prepare_torchvision
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.video.reader import open_video


@pytest.fixture(autouse=True)
def no_checksums(monkeypatch):
    """Files of our own have other checksums than those that torchvision knows; they must still be there."""
    monkeypatch.setattr("torchvision.datasets.stl10.check_integrity", lambda path, md5=None: Path(path).exists())


def random_pixels(count, *shape):
    return np.random.Generator(np.random.PCG64(count)).integers(0, 256, (count, *shape), np.uint8)


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.tobytes())


def make_mnist(root, digits, labels):
    """The first images are for training, the last 20 for tests."""
    for name, part in (("train", slice(None, -20)), ("t10k", slice(-20, None))):
        write_idx(root / "MNIST" / "raw" / f"{name}-images-idx3-ubyte", digits[part])
        write_idx(root / "MNIST" / "raw" / f"{name}-labels-idx1-ubyte", labels[part])


def make_stl10(root):
    """STL10: columns before rows, classes from 1."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    pixels = random_pixels(9, 3, 96, 96)
    for name, rows in (("train", slice(0, 3)), ("test", slice(3, 5)), ("unlabeled", slice(5, 9))):
        (folder / f"{name}_X.bin").write_bytes(pixels[rows].transpose(0, 1, 3, 2).tobytes())
    (folder / "train_y.bin").write_bytes(bytes([1, 10, 2]))
    (folder / "test_y.bin").write_bytes(bytes([4, 4]))
    names = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
    (folder / "class_names.txt").write_text("\n".join(names))
    return pixels


def pixels_of(lists, name):
    """All images of a list as vidssl decodes them, (N, 3, H, W), and their labels."""
    listed = read_list(lists / f"{name}.csv")
    frames = []
    for record in listed.records:
        with open_video(Path(record.path)) as video:
            assert video.meta.num_frames == 1
            frames.append(video.frames([0])[0])
    return np.stack(frames), [record.label for record in listed.records]


def test_the_digits_of_mnist(real, tmp_path):
    with gzip.open(real / "mnist" / "t10k-images-idx3-ubyte.gz") as file:
        digits = np.frombuffer(file.read(16 + 60 * 784), np.uint8, offset=16).reshape(60, 28, 28)
    with gzip.open(real / "mnist" / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + 60), np.uint8, offset=8)
    make_mnist(tmp_path / "sets", digits, labels)
    made = prepare_torchvision("MNIST", tmp_path / "sets", tmp_path / "lists")
    assert made.startswith("train: 40 images\ntest: 20 images\n60 files written")
    for name, part in (("train", slice(None, 40)), ("test", slice(40, None))):
        pixels, listed = pixels_of(tmp_path / "lists", name)
        assert listed == labels[part].tolist()
        assert np.array_equal(pixels, np.repeat(digits[part][:, None], 3, axis=1))
        theirs = torchvision.datasets.MNIST(tmp_path / "sets", train=name == "train")
        assert np.array_equal(pixels[:, 0], np.stack([np.asarray(theirs[n][0]) for n in range(len(theirs))]))
    listed = read_list(tmp_path / "lists" / "train.csv")
    assert listed.classes == tuple(torchvision.datasets.MNIST.classes)
    assert listed.names[:2] == (f"train/{labels[0]}/000000.png", f"train/{labels[1]}/000001.png")
    assert listed.root == (tmp_path / "lists" / "images" / "MNIST").resolve()
    stored = Image.open(listed.records[0].path)
    assert (stored.mode, stored.size) == ("L", (28, 28))
    report = prepare_moving_digits(tmp_path / "moving", train=1, test=1, frames=1, size=32, mnist=real / "mnist")
    assert report.startswith("rendered 1 training and 1 test videos")


def test_the_unlabelled_images_of_stl10(tmp_path):
    pixels = make_stl10(tmp_path / "sets")
    prepare_torchvision("STL10", tmp_path / "sets", tmp_path / "lists")
    expected = {"train": (slice(0, 3), [0, 9, 1]), "test": (slice(3, 5), [3, 3])}
    for name, (part, labels) in {**expected, "unlabeled": (slice(5, 9), [-1] * 4)}.items():
        decoded, actual = pixels_of(tmp_path / "lists", name)
        assert np.array_equal(decoded, pixels[part]) and actual == labels
    assert (tmp_path / "lists" / "unlabeled.csv").read_text().splitlines()[:2] == ["path", "unlabeled/000000.png"]
    assert read_list(tmp_path / "lists" / "train.csv").classes[9] == "truck"


class Tiny(torchvision.datasets.VisionDataset):
    """Three images of 4x4 in each split; subclasses make them invalid."""

    classes = ("dark", "light")

    def __init__(self, root, train=True):
        super().__init__(root)
        self.train = train

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return Image.new("RGB", (4, 4), (80 * number, 10, 20 * self.train)), number % 2


def known(monkeypatch, kind):
    monkeypatch.setattr(torchvision.datasets, "Tiny", kind, raising=False)
    return "Tiny"


def test_interrupted_run_continues(tmp_path, monkeypatch):
    class Stopped(Tiny):
        def __getitem__(self, number):
            if not self.train and number == 1:
                raise KeyboardInterrupt
            return super().__getitem__(number)

    with pytest.raises(KeyboardInterrupt):
        prepare_torchvision(known(monkeypatch, Stopped), tmp_path, tmp_path / "lists")
    assert not list((tmp_path / "lists").glob("*.csv"))
    made = prepare_torchvision(known(monkeypatch, Tiny), tmp_path, tmp_path / "lists")
    assert "2 files written, 4 existed already" in made
    decoded, labels = pixels_of(tmp_path / "lists", "train")
    assert decoded[:, :, 0, 0].tolist() == [[0, 10, 20], [80, 10, 20], [160, 10, 20]]
    assert labels == [0, 1, 0]
    images = sorted((tmp_path / "lists").rglob("*.png"))
    before = [image.read_bytes() for image in images]
    images[0].write_bytes(before[0][:-20])  # damaged
    images[5].unlink()
    assert "2 files written" in prepare_torchvision("Tiny", tmp_path, tmp_path / "lists")
    assert [image.read_bytes() for image in images] == before


def test_a_rotation_in_a_file_does_not_turn_the_image(tmp_path, monkeypatch):
    turned = Image.new("RGB", (6, 2), (9, 8, 7))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter
    turned.save(tmp_path / "turned.png", exif=exif)

    class Turned(Tiny):
        def __getitem__(self, number):
            return Image.open(tmp_path / "turned.png"), 0

    prepare_torchvision(known(monkeypatch, Turned), tmp_path, tmp_path / "lists")
    assert pixels_of(tmp_path / "lists", "test")[0].shape == (3, 3, 2, 6)


def test_unknown_and_missing_sets(tmp_path):
    for name, kind, message in (
        ("CIFAR11", ConfigError, "no image set 'CIFAR11' with the splits"),
        ("UCF101", DataError, "cannot read UCF101"),
        ("STL10", DataError, r"cannot read STL10 in .*; pass the folder .*download=True"),
    ):
        with pytest.raises(kind, match=message) as caught:
            prepare_torchvision(name, tmp_path / "nothing", tmp_path / "lists")
        assert "\n" not in str(caught.value) and not (tmp_path / "lists").exists()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((Image.new("RGB", (4, 4)), -1), r"Tiny, train, item 0 is not \(image, class number\)"),
        ((Image.new("RGB", (4, 4)), "cat"), r"item 0 is not \(image, class number\)"),
        ((np.zeros((4, 4, 3), np.uint8), 1), r"item 0 is not \(image, class number\)"),
        (Image.new("RGB", (4, 4)), r"item 0 is not \(image, class number\)"),
        ((Image.new("I", (4, 4)), 1), r"image 0 has more than 8 bits per channel \(mode I\)"),
        ((Image.new("I;16", (4, 4)), 1), r"image 0 has more than 8 bits per channel \(mode I;16\)"),
        ((Image.new("RGB", (4, 4)), 2), "Tiny has 2 classes, from 0, but an image of class 2"),
    ],
)
def test_items_that_are_not_labelled_images(tmp_path, monkeypatch, item, message):
    class Other(Tiny):
        def __getitem__(self, number):
            return item

    with pytest.raises(DataError, match=message):
        prepare_torchvision(known(monkeypatch, Other), tmp_path, tmp_path / "lists")
    assert not list((tmp_path / "lists").glob("*.csv"))


def test_download_only_on_request(tmp_path, monkeypatch):
    asked = []

    class Fetched(Tiny):
        def __init__(self, root, train=True, download=False):
            super().__init__(root, train)
            asked.append(download)

    prepare_torchvision(known(monkeypatch, Fetched), tmp_path, tmp_path / "lists")
    prepare_torchvision("Tiny", tmp_path, tmp_path / "lists", download=True)
    assert asked == [False, False, True, True]


def make_dtd(root):
    """DTD: two classes, one image of each in each of the splits of its first partition."""
    for number, split in enumerate(("train", "val", "test")):
        labels = root / "dtd" / "dtd" / "labels" / f"{split}1.txt"
        labels.parent.mkdir(parents=True, exist_ok=True)
        labels.write_text("".join(f"{name}/{name}_{number}.jpg\n" for name in ("banded", "woven")))
        for name in ("banded", "woven"):
            image = root / "dtd" / "dtd" / "images" / name / f"{name}_{number}.jpg"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (6, 5), (40 * number, 0, 0)).save(image)


def test_training_splits_are_joined(tmp_path):
    make_dtd(tmp_path / "sets")
    made = prepare_torchvision("DTD", tmp_path / "sets", tmp_path / "lists", train_split=("train", "val"))
    assert made.startswith("train: 4 images\ntest: 2 images\n")
    pixels, labels = [], []
    for record in (actual := read_list(tmp_path / "lists" / "train.csv")).records:
        with open_video(Path(record.path)) as video:
            pixels.append(int(video.frames([0])[0, 0].mean()))
        labels.append(record.label)
    assert labels == [0, 1, 0, 1] and actual.classes == ("banded", "woven")
    assert np.allclose(pixels, [0, 0, 40, 40], atol=2)
    with pytest.raises(ConfigError, match="CIFAR10 has one training split: leave out the training split train val"):
        prepare_torchvision("CIFAR10", tmp_path / "sets", tmp_path / "other", train_split=("train", "val"))
