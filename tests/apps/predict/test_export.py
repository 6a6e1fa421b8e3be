"""The graph of a prediction has the classifier: its probabilities are those of the list."""

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl.apps.predict import network_of
from vidssl.base.errors import ConfigError
from vidssl.data.read_input import read_input
from vidssl.data.to_device import normalised

CLASSES = ("blue", "red")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_video):
    """A prediction of eight videos by a network that comes with vidssl, two clips of each."""
    folder = tmp_path_factory.mktemp("export")
    rng = np.random.RandomState(0)
    for n in range(8):
        pixels = rng.randint(0, 90, (20, 72, 96, 3)) + np.array([60 * (n % 2), 90, 60 * (1 - n % 2)])
        write_video(folder / "videos" / f"{n}.mp4", pixels.astype(np.uint8))
    (folder / "labels.csv").write_text("file,label\n" + "".join(f"{n}.mp4,{CLASSES[n % 2]}\n" for n in range(5)))
    options = {"labels": [folder / "labels.csv"], "workers": 0, "clips": 2, "none": 0}
    vidssl.predict(folder / "videos", model="vidssl-free", out=folder / "out", **options)
    return folder


def views_of(video, test):
    """The views of a video as the graph takes them."""
    views = test.dataset(read_input(video))[0, 0].views
    return torch.cat([normalised(torch.as_tensor(view)[None], test.mean, test.std) for view in views])


def check(folder, test, classify):
    with open(folder / "out/predictions.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 3
    for row in rows:
        probability = classify(views_of(folder / "videos" / row["path"], test))
        assert probability.shape == (1, 2) and probability.sum() == pytest.approx(1, abs=1e-5)
        assert CLASSES[int(probability.argmax())] == row["class"]
        assert float(probability.max()) == pytest.approx(float(row["confidence"]), abs=1e-3)


def test_the_network_predicts_what_the_list_has(folder):
    network, test, description = network_of(folder / "out", False)
    assert description["classes"] == [*CLASSES] and description["output"] == "probabilities"
    with torch.no_grad():
        check(folder, test, network)


@pytest.mark.long  # torch.onnx
def test_the_graph_does_too(folder):
    onnxruntime = pytest.importorskip("onnxruntime")
    results = vidssl.export(folder / "out", to="onnx", out=folder / "labels.onnx")
    assert results["largest_difference"] < 1e-4
    session = onnxruntime.InferenceSession(folder / "labels.onnx", providers=["CPUExecutionProvider"])
    _, test, _ = network_of(folder / "out", False)
    check(folder, test, lambda clips: session.run(["probabilities"], {"clips": clips.numpy()})[0])
    about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    embed = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "embed_without_vidssl.py"))["embed"]
    for row in csv.DictReader((folder / "out/predictions.csv").read_text().splitlines()):
        probability = embed(session, about, str(folder / "videos" / row["path"]))
        assert float(probability.max()) == pytest.approx(float(row["confidence"]), abs=1e-3)


def test_mistakes(folder):
    with pytest.raises(ConfigError, match='predictions are written with to="onnx"'):
        vidssl.export(folder / "out", to="safetensors", out=folder / "x.safetensors")
    labels = [folder / "labels.csv"]
    name = "floor:thumbnails+floor:motion"
    vidssl.predict(folder / "videos", labels=labels, model=name, out=folder / "sum", workers=0)
    with pytest.raises(ConfigError, match=f"is predicted by a sum, {name.replace('+', '.')}, which is no graph"):
        vidssl.export(folder / "sum", to="onnx", out=folder / "sum.onnx")
