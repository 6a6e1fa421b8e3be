"""The command `export`: every format of a run that was trained, its description, and the model card."""

import json
import shutil

import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.apps.export import OPSET, TOLERANCE, describe_clips_of_graph, export
from vidssl.base.errors import ConfigError
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.evaluation.features import LibraryClips
from vidssl.jobs.load_network import load_subject
from vidssl.models.backbones import ModuleBackbone
from vidssl.models.read_and_write_weights import read_checkpoint


@pytest.fixture(scope="module")
def run_folder(made_once, digits):
    """The folder of a run of two steps, with a test of its last checkpoint, and one of another."""

    def make(path):
        data = digits / "motion"
        settings = ["steps=2", "checkpoint.every=1", "batch_size=4", "device=cpu", "data.workers=0"]
        settings += ["data.moving_digits=null", "evaluate.clips=2", "evaluate.crops=1", "evaluate.every=null"]
        train(load_run("configs/toy/sce.yaml", [*settings, f"data.train={data}/train.csv", f"output={path}"]))
        arguments = ["--train-list", f"{data}/train.csv", "--protocol", "knn", "k=3", "--quiet", "--workers", "0"]
        for step, out in (("last", "test"), ("step-00000001", "first")):
            checkpoint = f"{path}/checkpoints/{step}.pt"
            cli.run("test", [f"{data}/test.csv", "--checkpoint", checkpoint, *arguments, "--out", f"{path}/{out}"])

    return made_once("exported_run", make)


@pytest.fixture(scope="module")
def folder(made_once, run_folder):
    return made_once("exported_folder", lambda path: export(run_folder, to="folder", out=path))


def test_config_json_states_all_that_the_run_evaluates_with(folder, run_folder):
    content = json.loads((folder / "config.json").read_text())
    subject = load_subject(str(run_folder / "checkpoints" / "last.pt"), {"device": "cpu"})
    test = subject.test
    assert content["backbone"] == subject.run.backbone.model_dump(mode="json")
    assert content["num_features"] == subject.encoder.dim
    assert content["clip"] == test.clip.model_dump(mode="json")
    assert content["input"]["shape"] == ["batch", 3, test.clip.frames, test.size, test.size]
    assert content["input"]["mean"] == [*test.mean] * 3 and content["input"]["std"] == [*test.std] * 3
    expected = test.model_dump(mode="json", include={"clips", "crops", "size", "layer", "grid", "precision"})
    assert expected.items() <= content["test"].items() and content["test"]["short_side"] == test.size
    assert content["training"] == {"method": "sce", "lists": ["motion/train.csv"], "steps": 2, "batch_size": 4}
    assert content["checkpoint"] == {"file": "step-00000002.pt", "sha256": subject.origin["sha256"], "step": 2}
    assert content["versions"] == {"vidssl": vidssl.__version__, "torch": torch.__version__}


def test_the_folder_is_the_checkpoint(folder, run_folder, tmp_path):
    one, other = vidssl.load_backbone(folder), vidssl.load_backbone(run_folder)
    assert all(torch.equal(w, other.state_dict()[n]) for n, w in one.state_dict().items())
    assert one.run_config == other.run_config
    tests = [load_subject(str(path), {"device": "cpu"}).test for path in (folder, run_folder)]
    assert tests[0] == tests[1]
    again = export(folder, to="folder", out=tmp_path / "again")  # with its first checkpoint
    assert again == {**json.loads((folder / "config.json").read_text()), "largest_difference": None}


def test_the_card_has_the_numbers_of_this_checkpoint_only(folder, run_folder):
    card = (folder / "README.md").read_text()
    results = json.loads((run_folder / "test" / "results.json").read_text())
    names = "knn", "knn_mean_class", "majority", "majority_mean_class"
    numbers = ", ".join(f"{name} {results[name]:.4f}" for name in names)
    assert card.startswith("---\nlibrary_name: vidssl\n")
    rows = [line for line in card.splitlines() if "results.json |" in line]
    how = "2 clips x 1 crop of 32², float32"
    assert rows == [f"| motion/test.csv | 16 | motion/train.csv | {how} | {numbers} | test/results.json |"]
    assert f"# {folder.name}: resnet3d18, sce\n" in card
    described = (folder / "config.json").read_text()
    assert json.loads(card.partition("```json\n")[2].partition("```")[0]) == json.loads(described)
    assert str(run_folder) not in card


def test_results_of_another_layer_are_not_in_the_card(run_folder, tmp_path):
    file = run_folder / "test" / "results.json"
    results, path = json.loads(file.read_text()), tmp_path / "results.json"
    path.write_text(json.dumps({**results, "protocol": {**results["protocol"], "layer": "layer2", "grid": 2}}))
    with pytest.raises(ConfigError, match=r"results of the maps of layer2, .*, not of the features of the backbone"):
        export(run_folder, to="folder", out=tmp_path / "net", results=[path])
    assert not (tmp_path / "net").exists()
    copy = shutil.copytree(run_folder, tmp_path / "run", symlinks=True)
    shutil.copytree(tmp_path, copy / "other", ignore=lambda *_: ["run"])
    (copy / "map").mkdir()  # which holds no test
    (copy / "map/results.json").write_text(json.dumps({k: v for k, v in results.items() if k not in ("list", "query")}))
    export(copy, to="folder", out=tmp_path / "net")
    rows = [line for line in (tmp_path / "net" / "README.md").read_text().splitlines() if "results.json |" in line]
    assert len(rows) == 1 and rows[0].endswith("| test/results.json |")


def test_the_card_states_what_the_numbers_are_of(run_folder, tmp_path):
    results = json.loads((run_folder / "test" / "results.json").read_text())
    gap = [{"path": "a.mp4", "reason": "damaged"}]
    retrieval = {"R@1": 0.25, "knn": 0.5, "query": "q.csv", "gallery": "g.csv", "num_queries": 3, "centered": True}
    kept = {name: results[name] for name in ("checkpoint", "config", "request") if name in results}
    options = {"missing_gallery": gap, "drop_duplicates": True, "windows": {"window": 2.0, "stride": 1.0}}
    protocol = {**results["protocol"], "precision": "bfloat16"}
    trained = {**results, "overlap": {"training": {"videos": 3}}, "missing": gap}
    trained["protocols"] = [{"name": "retrieval", "center": True}]
    files = []
    for name, content in (("a", {**kept, **retrieval, **options, "protocol": protocol}), ("b", trained)):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / "results.json")
        files[-1].write_text(json.dumps(content))
    export(run_folder, to="folder", out=tmp_path / "net", results=files)
    rows = [line for line in (tmp_path / "net" / "README.md").read_text().splitlines() if "results.json |" in line]
    notes = "bfloat16, R@k of centred features, drop duplicates, 1 missing gallery, windows of 2 s"
    assert f"{notes} | R@1 0.2500, knn 0.5000 |" in rows[0]
    assert "float32, R@k of centred features, 1 missing, 3 videos of the training list |" in rows[1]


def test_results_that_are_named(run_folder, tmp_path, capsys):
    arguments = [str(run_folder), "--to", "folder", "--out", str(tmp_path / "net"), "--json"]
    with pytest.raises(ConfigError, match=r"first/results.json holds no results of it"):
        cli.run("export", [*arguments, "--results", str(run_folder / "first" / "results.json")])
    assert not [*tmp_path.iterdir()]
    cli.run("export", [*arguments, "--results", str(run_folder / "test" / "results.json")])
    assert json.loads(capsys.readouterr().out)["training"]["steps"] == 2
    assert (tmp_path / "net" / "README.md").read_text().count("results.json |") == 1


def test_a_file_of_safetensors_holds_the_same_description(folder, run_folder, tmp_path, capsys):
    path = tmp_path / "net.safetensors"
    cli.run("export", [str(run_folder), "--to", "safetensors", "--out", str(path)])
    assert capsys.readouterr().out.startswith(f"{path}: resnet3d18, batch x 3 x ")
    assert read_checkpoint(path)["network"] == json.loads((folder / "config.json").read_text())
    theirs, ours = vidssl.load_backbone(run_folder).state_dict(), vidssl.load_backbone(path).state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in theirs.items())


@torch.no_grad()
def test_onnxruntime_computes_the_features(run_folder, tmp_path, monkeypatch):
    """At two sizes of a batch, neither of which was the example."""
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    described = export(run_folder, to="onnx", out="demo.onnx")
    assert described.pop("largest_difference") <= TOLERANCE
    session = onnxruntime.InferenceSession("demo.onnx", providers=["CPUExecutionProvider"])
    (clips,), (features,) = session.get_inputs(), session.get_outputs()
    assert (clips.name, clips.shape) == ("clips", described["input"]["shape"])
    assert (features.name, features.shape) == ("features", ["batch", described["num_features"]])
    properties = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in properties.items()} == described
    assert [(opset.domain, opset.version) for opset in onnx.load("demo.onnx").opset_import] == [("", OPSET)]
    network = vidssl.load_backbone(run_folder)
    for count in (1, 5):
        x = torch.randn(count, *clips.shape[1:], generator=torch.Generator().manual_seed(count))
        computed = torch.from_numpy(session.run(None, {"clips": x.numpy()})[0])
        torch.testing.assert_close(computed, network(x), rtol=0, atol=1e-4)


def test_what_other_libraries_do_is_said_to_be_theirs():
    """Their crops and `finish`, which no graph has."""
    clips = {"clip": vidssl.ClipSettings(frames=2, seconds="whole"), "size": 8, "library": "timm 1.0"}
    network = ModuleBackbone(torch.nn.Flatten(), 2, 8, lambda x: 2 * x)
    actual = [describe_clips_of_graph(LibraryClips(crop=crop, **clips), network) for crop in (None, lambda x: x)]
    assert [of["reading"]["resize"][:9] for of in actual] == ["by OpenCV", "by timm 1"]
    assert all(of["reading"]["pooling"].endswith("then `finish` of the encoder") for of in actual)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onnx", "--out", "x.pt"], r"cannot write x.pt: --to onnx writes a file named \*.onnx"),
        (["--to", "folder", "--out", "."], r"\. exists already: choose another folder"),
        (
            ["--to", "pt2", "--out", "x.pt2", "--results", "r.json"],
            "results are for the model card, which only --to folder writes",
        ),
        (
            ["vidssl-frames", "--to", "folder", "--out", "x"],
            "is not one network of vidssl: --to onnx or --to pt2 writes its networks as graphs",
        ),
        (["floor:motion", "--to", "onnx", "--out", "x.onnx"], "floor:motion has no graph, OpenCV computes it"),
    ],
)
def test_mistakes_are_errors_of_one_line(arguments, message, run_folder):
    network = [str(run_folder)] * arguments[0].startswith("--")
    with pytest.raises(ConfigError, match=message) as caught:
        cli.run("export", [*network, *arguments])
    assert "\n" not in str(caught.value)
