"""`analyze all`: every analysis of a network on drawn videos, and one page."""

import csv
import html
import json
import re
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest

from vidssl import cli
from vidssl.apps.analysis import invariance as analyze_invariance
from vidssl.apps.analysis import versions
from vidssl.apps.analysis.all import ANALYSIS_PARTS, draw_videos
from vidssl.apps.analysis.gradcam import GRADCAM
from vidssl.cli import ANALYSES
from vidssl.evaluation import features
from vidssl.jobs import load_network as network

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"


def analyze(digits, checkpoint, out, *words):
    arguments = [f"{digits}/motion/test.csv", "--checkpoint", str(checkpoint), "--workers", "0", "--device", "cpu"]
    cli.run("analyze", ["all", *arguments, "--out", str(out), *words])
    return json.loads((out / "results.json").read_text()), (out / "index.html").read_text()


def drawn(out, name):
    with (out / "lists" / name).open() as file:
        return [row["path"] for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(digits, trained, tmp_path_factory):
    """All analyses of 8 videos: their folder, results and page, the files that were loaded, and what was encoded."""
    out, loaded, encoded = tmp_path_factory.mktemp("whole"), [], Counter()
    read, encode = network.read_anything, features.encode_videos

    def reading(path, trust):
        loaded.append(path)
        return read(path, trust)

    def encoding(encoder, dataset, *rest, **options):
        kind = f"{type(dataset.sampler)}"
        table = getattr(getattr(dataset.sampler, "config", None), "table", None)
        key = (dataset.videos.path.name, kind if table is None else "corrupted" if "fog" in table else "transformed")
        encoded.update({(*key, record.path): 1 for record in dataset.videos.records})
        return encode(encoder, dataset, *rest, **options)

    lists = ["--train-list", f"{digits}/motion/train.csv", "--boxes", f"{digits}/boxes.csv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "read_anything", reading)
        for module in (features, versions, analyze_invariance):
            patch.setattr(module, "encode_videos", encoding)
        results, page = analyze(digits, trained, out, *lists, "--limit", "8")
    return out, results, page, loaded, encoded


def test_the_page_has_every_analysis(whole):
    out, results, page, *_ = whole
    measured = {part.measurement.command.removeprefix("analyze ") for part in ANALYSIS_PARTS} | {GRADCAM.name}
    assert ANALYSES.jobs.keys() - {"all"} <= measured
    assert results["left_out"] == {} and results["num_videos"] == 8
    for header in (*(part.header for part in ANALYSIS_PARTS), GRADCAM):
        folder = out / header.name / ("trained" if header is GRADCAM else "")
        stored = json.loads((folder / "results.json").read_text())
        assert stored["num_videos"] == 8, header.name
        assert f'id="{header.name}"' in page and header.title in page
        assert {key: stored["protocol"][key] for key in ("clips", "crops")} == {"clips": 1, "crops": 1}, header.name
        assert html.escape(results["verdicts"][header.name], quote=False).replace(" %", "\u00a0%") in page
    numbers, robust = (json.loads((out / name / "results.json").read_text()) for name in ("numbers", "robustness"))
    shared = {"R@1", "knn", "top1", "ece"} & numbers.keys()
    assert {"R@1", "knn", "top1"} <= shared and {key: numbers[key] for key in shared} == {
        key: robust[key] for key in shared
    }
    assert numbers["num_train"] == robust["num_train"] == 32
    assert page.count("8 videos; 1 clip x 1 crop of 32²") == 1 + len(ANALYSIS_PARTS) and "1 crops" not in page
    assert "n = 8 of" in page and not re.search(r"""(src|href)=["']?https?:""", page)
    tested, trained = drawn(out, "test/test.csv"), drawn(out, "train/train.csv")
    assert len(tested) == 8 and len(trained) == 32
    with (out / "lists/test/test.csv").open() as file:
        assert {*Counter(row["label"] for row in csv.DictReader(file)).values()} == {2}  # in pairs of a class


def test_what_cannot_be_measured_is_on_the_page_with_its_reason(digits, trained, whole, tmp_path):
    results, page = analyze(digits, trained, tmp_path / "out", "--limit", "4")
    draw_videos(digits / "motion/test.csv", {}, 8, tmp_path / "lists/test")
    assert drawn(tmp_path, "test/test.csv") == drawn(whole[0], "test/test.csv")  # as with other lists
    with (digits / "motion/test.csv").open() as file:
        every = [row["path"] for row in csv.DictReader(file)]
    assert [*draw_videos(digits / "motion/test.csv", {}, None, tmp_path / "all").names] == every
    assert "training videos" in results["left_out"]["order"] and "Not measured: " in page
    assert results["left_out"]["background"] == "it needs boxes=FILE" and "classes" not in results["left_out"]


def test_numbers_of_single_videos_have_the_means_of_results(whole):
    out, checked = whole[0], 0
    for part in ANALYSIS_PARTS:
        for folder in (out / part.header.name, out / "untrained" / part.header.name):
            if part.needs != "per_video" or not folder.exists():
                continue
            found = json.loads((folder / "results.json").read_text())
            rows = found["per_video"].pop("rows")
            assert rows == [*range(8)]
            for name, values in found["per_video"].items():
                metric, _, kind = name.partition("_")
                needed = found.get("groups", {}).get(kind) or found.get("severities", {}).get(kind[len("severity_") :])
                assert mean(values) == pytest.approx(found[name] if needed is None else needed[metric]), name
                checked += 1
    assert checked > 50


def test_the_untrained_network_is_that_of_the_config(digits, whole, tmp_path):
    """Its numbers are those of `random`; the costly section leaves it out."""
    out, _, page, *_ = whole
    folders = {path.name for path in (out / "untrained").iterdir()}
    assert folders == {part.header.name for part in ANALYSIS_PARTS} - {"robustness"}
    assert "takes as long again: vidssl analyze all --untrained all measures it." in page
    stored = json.loads((out / "untrained" / "numbers" / "results.json").read_text())
    lists = [f"{out}/lists/test/test.csv", "--train-list", f"{out}/lists/train/train.csv", "--out", f"{tmp_path}/t"]
    run = [
        f"{key}={value}"
        for key, value in (("data.workers", 0), ("data.moving_digits", "null"), ("backbone.zero_init", "false"))
    ]
    words = ["--checkpoint", "random", "--cfg", str(TOY), *run, "--clips", "1", "--crops", "1", "--device", "cpu"]
    cli.run("test", [*lists, *words])
    expected = json.loads((tmp_path / "t" / "results.json").read_text())
    assert {key: stored[key] for key in ("R@1", "knn", "uniformity_loss", "checkpoint")} == {
        key: expected[key] for key in ("R@1", "knn", "uniformity_loss", "checkpoint")
    }
    assert "top1" not in stored


def test_the_untrained_network_can_be_measured_everywhere_or_left_out(digits, trained, tmp_path):
    list_of_few, out = ["--limit", "4", "--train-list", f"{digits}/motion/train.csv", "--untrained"], tmp_path / "out"
    _, page = analyze(digits, trained, out, *list_of_few, "all")
    assert (out / "untrained" / "robustness" / "results.json").exists() and "Nothing can be said with 4 videos" in page
    # Results of `test`, which do not have what intervals need, are measured again.
    results = out / "numbers" / "results.json"
    stored = json.loads(results.read_text())
    kept = stored.pop("per_video")
    results.write_text(json.dumps(stored))
    _, page = analyze(digits, trained, out, *list_of_few, "none")
    assert json.loads(results.read_text())["per_video"] == kept and "it was not asked for" in page


def test_the_network_is_loaded_once_and_each_version_of_a_video_encoded_once(trained, whole):
    _, results, _, loaded, encoded = whole
    assert results["left_out"] == {} and loaded == [Path(trained)]
    # Once by each network; the corrupted ones by the trained network only.
    assert {key: count for key, count in encoded.items() if count != (1 if key[1] == "corrupted" else 2)} == {}
    # Clips as they are of both lists, and of the tested one with other backgrounds, transformed and corrupted.
    assert Counter(key[0] for key in {key[:2] for key in encoded}) == {"test.csv": 4, "train.csv": 1}
