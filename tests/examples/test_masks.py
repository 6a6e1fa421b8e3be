"""Masks: the list column, files that are refused, and alignment with the view on any number of workers."""

import re
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from vidssl.base.errors import DataError
from vidssl.base.types import VideoRecord
from vidssl.data.clip_samplers import Random
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, StepSampler, eval_loader
from vidssl.data.to_device import to_device
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import copy_list, write_lists
from vidssl.transforms import RECIPES

HEIGHT, WIDTH = 40, 60


@pytest.fixture(scope="module", autouse=True)
def names(plug_in):
    """What the tests use of the example."""
    global read_mask
    read_mask = plug_in("part_segmentation").read_mask


def parts(number):
    """A mask: a disc of part 1 at a place of its own, part 2 below it, a rim that is not counted."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[(x - 15 - 8 * number) ** 2 + (y - 18) ** 2 < 12**2] = 1
    mask[(mask == 1) & (y > 18)] = 2
    mask[:, -6:] = 255
    return mask


GRAY = np.array([20, 120, 220] + [0] * 252 + [70])  # the brightness of each part


@pytest.fixture(scope="module")
def masked(tmp_path_factory, write_video):
    """A list of four videos whose gray level is the part of each pixel, and their masks."""
    root = tmp_path_factory.mktemp("masked")
    (root / "masks").mkdir()
    rows = []
    for n in range(4):
        picture = np.repeat(GRAY[parts(n)][..., None], 3, axis=-1).astype(np.uint8)
        write_video(root / f"{n}.mp4", np.repeat(picture[None], 6, axis=0))
        Image.fromarray(parts(n)).save(root / f"masks/{n}.png")
        rows.append(VideoRecord(f"{n}.mp4", n, mask=f"masks/{n}.png"))
    write_lists(root / "lists", root, {"train": rows}, ())
    return root / "lists" / "train.csv"


def masked_set(path, **settings):
    sampler = Random(Random.Config(frames=2, sampling_rate=2))
    recipes = [RECIPES["weak"](RECIPES["weak"].Config(size=size, area=(0.5, 1.0))) for size in (30, 24)]
    return ClipDataset(read_list(path), sampler, recipes, **settings)


def test_the_mask_of_a_sample_is_aligned_with_its_first_view(masked):
    dataset, flipped = masked_set(masked), 0
    for epoch in range(6):
        for index in range(4):
            sample = dataset[epoch, index]
            assert sample.mask.shape == (30, 30) and sample.mask.dtype == np.uint8
            shown = sample.views[0][1, 0].astype(float)
            # Where the mask says nothing else nearby, the gray is that of its part.
            same = np.ones_like(sample.mask, bool)
            for axis, step in ((0, 1), (0, -1), (1, 1), (1, -1)):
                same &= np.roll(sample.mask, step, axis) == sample.mask
            same[[0, -1]] = same[:, [0, -1]] = False
            assert same.mean() > 0.5
            assert np.abs(shown - GRAY[sample.mask])[same].max() < 45  # half way to the next gray
            assert np.abs(shown - GRAY[sample.mask])[same].mean() < 6
            flipped += sample.mask[:, :3].max() == 255
    assert flipped  # the rim at the right was at the left


def test_batches_with_masks_do_not_depend_on_workers(masked):
    def batches(workers):
        return list(Loader(masked_set(masked), StepSampler(4, 2, 2, 0, 4, 0), workers))

    straight = batches(0)
    for workers in (1, 2):
        assert all(torch.equal(a.mask, b.mask) for a, b in zip(batches(workers), straight, strict=True))
    dataset = masked_set(masked)
    assert torch.equal(
        straight[0].mask, torch.stack([torch.from_numpy(dataset[0, int(n)].mask) for n in straight[0].index])
    )
    moved = to_device(straight[0], torch.device("cpu"), (0.45,), (0.225,))
    assert moved.mask.dtype == torch.int64 and torch.equal(moved.mask, straight[0].mask.long())
    assert moved.boxes is None


def spoil(masked, tmp_path, picture=None, content=None):
    """The list with another mask for its first video."""
    root = masked.parents[1]
    path = root / "masks" / f"{tmp_path.name}.png"
    if picture is not None:
        picture.save(path)
    if content is not None:
        path.write_bytes(content)
    rows = [VideoRecord("0.mp4", 0, mask=f"masks/{path.name}"), VideoRecord("1.mp4", 1, mask="masks/1.png")]
    write_lists(tmp_path, root, {"train": rows}, ())
    return tmp_path / "train.csv", path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: {}, "No such file"),
        (lambda: {"content": b""}, "not a PNG"),
        (lambda: {"content": b"GIF89a" + bytes(50)}, "not a PNG"),
        (lambda: {"picture": Image.new("L", (HEIGHT, WIDTH))}, "is 40x60, the frame is 60x40"),
        (lambda: {"picture": Image.new("RGB", (WIDTH, HEIGHT))}, "mode RGB"),
        (lambda: {"picture": Image.new("I;16", (WIDTH, HEIGHT))}, "mode I;16"),
    ],
    ids=["missing", "empty", "gif", "turned", "colours", "16 bits"],
)
def test_masks_that_are_refused(masked, tmp_path, make, reason):
    path, mask = spoil(masked, tmp_path, **make())
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        masked_set(path)[0, 0]
    assert str(mask) in str(caught.value) and "\n" not in str(caught.value)
    replaced = masked_set(path, replace=1)[0, 0]  # in training the next video takes the place
    assert replaced.index == 1 and str(mask) in replaced.replaced[0][1]
    (batch,) = eval_loader(masked_set(path, skip=True), 2, 0)
    assert batch.index.tolist() == [1] and batch.mask.shape == (1, 30, 30)


@pytest.mark.parametrize("bits", [2, 4])
def test_gray_of_fewer_bits_is_refused(tmp_path, bits):
    """Pillow reads the number 3 of such a file as 255 (of 2 bits) or 51 (of 4)."""

    def chunk(name, content):
        whole = name + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    row = bytes(1) + bytes([0xFF if bits == 2 else 0x33]) * (WIDTH * bits // 8)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, 0, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * HEIGHT)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with pytest.raises(DataError, match="not one channel of 8 bits"):
        read_mask(str(tmp_path / "a.png"), HEIGHT, WIDTH)


@pytest.mark.parametrize("side", [5_000, 12_000, 100_000])
def test_huge_masks_are_refused_from_the_header(tmp_path, side):
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    (tmp_path / "large.png").write_bytes(content + struct.pack(">I", 99) + b"IDAT" + bytes(99))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with pytest.raises(DataError, match=r"large\.png (is \d+x\d+, the frame is 60x40|.*decompression bomb)"):
            read_mask(str(tmp_path / "large.png"), HEIGHT, WIDTH)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("", "the mask is empty"),
        ("  ", "the mask is empty"),
        ("../b.png", "leaves the root"),
        ("/etc/b.png", "leaves the root"),
        ("http://x/b.png", "is a URL"),
        ("file:b.png", "is a URL"),
    ],
)
def test_cells_that_are_refused(tmp_path, cell, reason):
    path = tmp_path / "list.csv"
    path.write_text(f"path,mask\na.mp4,a.png\nb.mp4,{cell}\n")
    with pytest.raises(DataError, match=rf"list\.csv:3: .*{reason}"):
        read_list(path)
    if reason == "leaves the root":
        assert read_list(path, allow_external=True).records[1].mask == str(tmp_path / cell)


def test_a_copy_of_a_list_keeps_its_masks_or_is_refused(masked, tmp_path):
    listed = read_list(masked)
    copy = copy_list(listed, tmp_path / "same", listed.root, [listed.names[0], None, *listed.names[2:]])
    assert [record.mask for record in read_list(copy).records] == [
        record.mask for n, record in enumerate(listed.records) if n != 1
    ]
    with pytest.raises(DataError, match=r"masks are not copied: .* use a list without"):
        copy_list(listed, tmp_path / "other", tmp_path / "other", listed.names)
