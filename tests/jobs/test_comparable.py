"""Features of other networks or clips are set beside each other nowhere: one line names what differs."""

import re
import shutil
from dataclasses import replace

import pytest
import torch

import vidssl
from vidssl.apps.search import retrieval
from vidssl.base.errors import DataError
from vidssl.base.types import Features
from vidssl.data.video_list import read_list
from vidssl.jobs.extract import extract, merge

CLIP = vidssl.ClipSettings(frames=4, seconds=0.4)
BASE = {"clip": CLIP, "clips": 1, "crops": 1, "size": 24, "workers": 0}
LAYER = {"layer": "layer3"}
REFUSED = {  # what is changed alone, and how it is named
    "network": ({}, {}, "network"),
    "stream": ({"stream": "rgb"}, {"stream": "motion"}, "stream rgb and motion"),
    "layer": ({}, LAYER, "layer none and layer3"),
    "another layer": (LAYER, {"layer": "layer4"}, "layer layer3 and layer4"),
    "grid": (LAYER, {**LAYER, "grid": 2}, "grid 1 and 2"),
    "grid_frames": (LAYER, {**LAYER, "grid_frames": 2}, "grid_frames 1 and 2"),
    "size": ({}, {"size": 32}, "size 24 and 32"),
    "short_side": ({}, {"short_side": 30}, "short side 24 and 30"),
    "mean": ({}, {"mean": (0.5,)}, "mean [0.45, 0.45, 0.45] and [0.5, 0.5, 0.5]"),
    "std": ({}, {"std": (0.2, 0.2, 0.3)}, "std [0.225, 0.225, 0.225] and [0.2, 0.2, 0.3]"),
    "frames": ({}, {"clip": vidssl.ClipSettings(frames=2, seconds=0.4)}, "frames of a clip 4 and 2"),
    "seconds": ({}, {"clip": vidssl.ClipSettings(frames=4, seconds=0.8)}, "seconds of a clip 0.4 and 0.8"),
    "stride": ({}, {"clip": vidssl.ClipSettings(frames=4, sampling_rate=2)}, "sampling rate of a clip none and 2"),
}
ACCEPTED = {
    "clips": {"clips": 2},
    "crops": {"crops": 3},
    "precision": {"precision": "bfloat16"},
    "mean of each channel": {"mean": (0.45, 0.45, 0.45)},
}


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return [vidssl.build_backbone("resnet3d18", width=4) for _ in range(2)]


@pytest.fixture(scope="module")
def streams():
    torch.manual_seed(0)
    stream = {"name": "resnet3d18", "width": 4}
    return vidssl.build_backbone(
        "two_streams", streams={"rgb": stream, "motion": {**stream, "frame_differences": True}}
    )


@pytest.fixture
def videos(digits, tmp_path):
    (tmp_path / "videos").mkdir()
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:4]):
        shutil.copy(record.path, tmp_path / f"videos/{n}.mp4")
    return tmp_path / "videos"


def clips(changes):
    return {"test": vidssl.TestClips(**BASE | changes), "device": "cpu"}


def search(one, other, videos, folder):
    features = [extract(model, videos, **options) for model, options in (one, other)]
    vidssl.search(*features)


def saved_search(one, other, videos, folder):
    """Of loaded features, of which some rows are chosen."""
    for n, (model, options) in enumerate((one, other)):
        extract(model, videos, out=folder / str(n), **options)
    a, b = (vidssl.load_features(folder / str(n)) for n in range(2))
    half = replace(b, x=b.x[:2], label=b.label[:2], index=b.index[:2], records=b.records[:2])
    vidssl.search(half, a, k=1)


def index(one, other, videos, folder):
    extract(one[0], videos, out=folder / "index", **one[1])
    retrieval(other[0], query=videos / "0.mp4", index=folder / "index", out=folder / "found", **other[1])


def folder_of_others(one, other, videos, folder):
    for model, options in (one, other):
        extract(model, videos, out=folder / "x", **options)


def index_of_a_gallery(one, other, videos, folder):
    for n, (model, options) in enumerate((one, other)):
        retrieval(model, query=videos, gallery=videos, index=folder / "x", out=folder / f"found{n}", **options)


def parts(one, other, videos, folder):
    for n, (model, options) in enumerate((one, other)):
        extract(model, videos, out=folder / "x", shard=f"{n}/2", **options)
    merge(folder / "x")


def merge_over_others(one, other, videos, folder):
    extract(one[0], videos, out=folder / "x", **one[1])
    for n in range(2):
        extract(other[0], videos, out=folder / "x", shard=f"{n}/2", **other[1])
    merge(folder / "x")


COMPARING = [search, saved_search, index]  # what sets rows of two networks beside each other


# All cases by one function, and some by the others, which call the same functions.
CASES = [*((case, search) for case in REFUSED), ("stream", folder_of_others)]
CASES += [("network", function) for function in (saved_search, index, index_of_a_gallery, parts, merge_over_others)]
CASES += [("size", function) for function in (saved_search, index, parts)]


@pytest.mark.parametrize(("case", "function"), CASES)
def test_what_differs_is_named(case, function, networks, streams, videos, tmp_path):
    before, after, named = REFUSED[case]
    if case == "stream":
        networks = [streams, streams]
    one, other = (networks[0], clips(before)), (networks[case == "network"], clips(after))
    with pytest.raises(DataError) as caught:
        function(one, other, videos, tmp_path)
    message = str(caught.value)
    assert "\n" not in message and not re.search("[0-9a-f]{16}", message.replace(str(tmp_path), ""))
    if function in COMPARING:
        assert named in message or named.split()[0] in message
    else:
        assert named.split()[0].replace("network", "weights") in message


@pytest.mark.parametrize("case", ACCEPTED)
def test_numbers_of_views_may_differ(case, networks, videos, tmp_path):
    search((networks[0], clips({})), (networks[0], clips(ACCEPTED[case])), videos, tmp_path)


def test_windows_and_centring_may_differ(networks, videos):
    whole = extract(networks[0], videos, **clips({}))
    windows = extract(networks[0], videos, window=0.4, **clips({}))
    assert vidssl.search(windows, whole, k=1, center=True).index.shape == (4, 1)


def test_the_same_weights_from_elsewhere(videos, tmp_path):
    """A name, a copy of its file, and the network in memory are one network."""
    file = shutil.copy(vidssl.models.read_and_write_weights.weights_file("vidssl-small"), tmp_path / "copy.safetensors")
    options = {"clips": 1, "crops": 1, "size": 32, "workers": 0, "device": "cpu"}
    features = [
        extract(model, videos, **options) for model in ("vidssl-small", file, vidssl.load_backbone("vidssl-small"))
    ]
    for other in features[1:]:
        vidssl.search(features[0], other, k=1)
        vidssl.search(other, features[0], k=1)
    free = extract("vidssl-free", videos, **options)
    with pytest.raises(DataError, match="network vidssl-small and vidssl-free"):
        vidssl.search(features[0], free)


def test_what_has_no_record_is_accepted(networks, videos):
    made = extract(networks[0], videos, **clips({}))
    plain = Features(made.x, made.label, made.index)
    for pair in ((made, plain), (plain, made), (made, made.x), (made.x, made)):
        vidssl.search(*pair, k=1)


def test_floors_are_not_comparable(videos):
    features = [extract(f"floor:{name}", videos, workers=0, device="cpu") for name in ("thumbnails", "differences")]
    with pytest.raises(DataError, match="network floor:thumbnails and floor:differences"):
        vidssl.search(*features)
