"""Every config in the repository binds, says how it is run, and names data that exist or get rendered."""

import re
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from vidssl.base.config import read
from vidssl.base.errors import ConfigError
from vidssl.engine.run_config import load_run
from vidssl.jobs.doctor import schema
from vidssl.jobs.track import tracker_settings as settings
from vidssl.jobs.train import bind_config
from vidssl.methods import METHODS

ROOT = Path(__file__).parents[1]
# What a header says of a probe: a config, then perhaps its section in brackets, then perhaps settings.
SETTING = r"(?<=')[\w.]+=[^']*(?=')|[\w.]+=[^\s;,']*[^\s;,'.]"
PROBE = re.compile(rf"(configs/(?:linear|finetune)/\w+\.yaml)(?: \([^)]*\))?(?: with((?: '?(?:{SETTING})'?)+))?")
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml"))
STUDIES = [name for name in FILES if "\nruns:\n" in (ROOT / name).read_text(encoding="utf-8")]
CONFIGS = [name for name in FILES if name not in STUDIES]


def several(name):
    """Whether a config is for several splits."""
    return "{split}" in (ROOT / name).read_text(encoding="utf-8").split("\noutput:", 1)[1]


@cache
def load(name):
    """Bind a config; one for several splits as that of the first."""
    if several(name):
        return load_run(ROOT / name, split=1)
    return bind_config(read(ROOT / name), name)[0]


def named(names):
    """Cases of a check, by name."""
    return {name: (name,) for name in names}


def test_configs_bind(check_all):
    def check(name):
        run = load(name)
        assert run.output.startswith("output/") and ".." not in run.output

    check_all(check, named(CONFIGS))


def test_every_run_of_a_study_binds_and_differs(check_all):
    """With the config of the study, and with the small one that its header names."""

    def check(name):
        text = (ROOT / name).read_text(encoding="utf-8")
        study = YAML(typ="safe").load(text)
        commands = re.findall(rf"# python benchmarks/study\.py {re.escape(name)} (?:--cfg (\S+))?", text)
        assert {*study} - {"knob"} == {"config", "runs"} and "untrained" not in study["runs"] and "" in commands
        assert "knob" not in study or all(isinstance(value, int | float) for value in study["runs"])
        for config in {study["config"], *filter(None, commands)}:
            bound = [load_run(ROOT / config, settings).model_dump_json() for settings in study["runs"].values()]
            assert len({*bound}) == len(bound) >= 2

    check_all(check, named(STUDIES))


def test_no_two_configs_write_to_one_folder():
    outputs = [load(name).output for name in CONFIGS]
    assert len(set(outputs)) == len(outputs)


def test_headers_say_what_a_config_is_and_how_it_is_run(check_all):
    def check(name):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        header = []
        for line in lines:
            if not line.startswith("#"):
                break
            header.append(line.removeprefix("#").strip())
        commands = [line for line in header if f"vidssl train --cfg {name}" in line]
        assert len(header) >= 2 and not header[0].startswith(("vidssl", "torchrun")), "what it is comes first"
        assert commands and all(re.match(r"(vidssl|torchrun) ", line) for line in commands)
        for script in re.findall(r"\b(?:tools|datasets)/\w+\.py", "\n".join(header)):
            assert (ROOT / script).exists()
        assert several(name) == any("--splits 1 2 3" in line for line in header)

    check_all(check, named(CONFIGS))


def test_an_expected_number_comes_with_its_probe(check_all):
    def check(name):
        header = (ROOT / name).read_text(encoding="utf-8").split("\noutput:")[0]
        expected = header.partition("# Expected: ")[2].partition("# Cost:")[0]
        probe = re.sub(r"\n#\s*", " ", expected.partition("# Probe: ")[2])
        published = re.search(r"(linear\D*|UCF101\D*)\d\d\.\d", expected)
        assert bool(published) == bool(PROBE.match(probe)), "the path of a config comes right after '# Probe: '"
        for path, overrides in PROBE.findall(probe):
            run = load_run(ROOT / path, re.findall(SETTING, overrides), split=1 if several(path) else None)
            assert run.backbone.model_dump() == load(name).backbone.model_dump()

    check_all(check, named(name for name in CONFIGS if name.startswith("configs/pretrain/")))


def test_the_tracker_of_the_papers_config_is_the_papers():
    """Eq. (4) and (5) and the top 300 proposals, nothing else."""
    header = (ROOT / "configs/pretrain/frame_invariance_tracks_r50_trackingnet.yaml").read_text(encoding="utf-8")
    match = re.search(r"--tracker ((?:[\w.]+=\w+[\s#\\]*)+)", header)
    tracker = settings(re.findall(r"[\w.]+=\w+", match[1]))
    assert (tracker.chunks, tracker.frames, tracker.min_gap, tracker.stride) == (4, 60, 40, 1)
    assert tracker.variant == "sum" and not tracker.center
    assert tracker.max_step is None and tracker.overlap is None
    search = tracker.search
    assert (search.limit, search.keep, search.adapt) == (300, "first", False)
    assert (search.smallest, search.largest, search.ratio) == (0, 1, None)


def test_demo_and_toy_data_get_rendered(check_all):
    def check(name):
        run = load(name)
        assert run.data.moving_digits is not None
        out = Path(run.data.moving_digits.out)
        rendered = {
            str(out / labels / f"{half}.csv")
            for labels in ("motion", "digit", *(("parts",) if run.data.moving_digits.masks else ()))
            for half in ("train", "test")
        }
        lists = {path for path in (run.data.train, run.evaluate.gallery, run.evaluate.query) if path is not None}
        assert lists <= rendered and run.data.root is None
        assert len(run.data.views) * run.batch_size <= run.data.moving_digits.train * len(run.data.views)

    check_all(check, named(name for name in CONFIGS if name.split("/")[1] in ("demo", "toy")))


def test_every_method_has_a_toy(check_all):
    def check(name):
        run = load(f"configs/toy/{name}.yaml")
        assert run.method.name == name and run.steps is not None and run.steps <= 20

    check_all(check, named(METHODS))


def test_toys_share_one_data_set():
    """One with masks lies elsewhere: a set that is there is not rendered again to add them."""
    sets = [load(name).data.moving_digits for name in CONFIGS if name.startswith("configs/toy/")]
    assert len({one for one in sets if not one.masks}) == 1
    assert len({one.model_copy(update={"masks": False, "out": ""}) for one in sets}) == 1


# Configs of one method that differ in at most three values and stay two files, with the reason.
ALIKE = {
    ("finetune/hmdb51", "finetune/ucf101"): "two data sets, each with its own published numbers",
    ("finetune/hmdb51_r18_16x112", "finetune/ucf101_r18_16x112"): "the same",
    (
        "pretrain/interclr_npid_r50_imagenet",
        "pretrain/interclr_npid_r50_imagenet_short",
    ): "studies start from the second",
    (
        "pretrain/simclr_r3d50_k400",
        "pretrain/simclr_three_clips_r3d50_k400",
    ): "a view is added: an override lists all views",
    ("pretrain/swav_r3d50_k400", "pretrain/swav_three_clips_r3d50_k400"): "the same",
    ("toy/moco", "toy/moco_jigsaw"): "each toy has its golden losses",
}


def values(tree, key=""):
    """The values of a YAML file by their keys."""
    if not isinstance(tree, dict) and not (isinstance(tree, list) and tree and isinstance(tree[0], dict)):
        return {key: tree}
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {name: value for part, below in parts for name, value in values(below, f"{key}.{part}").items()}


def test_variants_of_a_config_are_no_files():
    """They are settings in a header, or the runs of a study."""
    read = {name: values(YAML(typ="safe").load(ROOT / name)) for name in CONFIGS}
    alike = set()
    for one, other in combinations(CONFIGS, 2):
        differ = {key for key in {*read[one], *read[other]} if read[one].get(key) != read[other].get(key)} - {".output"}
        if len(differ) <= 3 and ".method.name" not in differ:
            alike.add(tuple(name.removeprefix("configs/").removesuffix(".yaml") for name in (one, other)))
    assert alike == {*ALIKE}


SCE = ROOT / "configs" / "toy" / "sce.yaml"
A, B = ["a/train.csv", "a/train.csv", "a/test.csv"], ["b/train.csv", "b/train.csv", "b/test.csv"]
FOLDERS = {  # what is set beside the config that has its own data.train: train, gallery and query
    "data.lists=a": A,
    "data.lists=3": ["3/train.csv", "3/train.csv", "3/test.csv"],
    "data.lists=a evaluate.query=c.csv": [*A[:2], "c.csv"],
    "data.lists=a data.train=c.csv": ["c.csv", *A[1:]],
    "data.lists=a data.train=[c.csv,d.csv]": [("c.csv", "d.csv"), *A[1:]],
    "evaluate.query=c.csv evaluate.gallery=d.csv data.lists=a": A,
    "data.lists=a data.lists=b": B,
}


def check_lists(overrides, expected):
    for file in (SCE, ROOT / "configs" / "finetune" / "small.yaml"):  # with data.train, with data.lists
        run = load_run(file, overrides.split())
        train = run.data.train if isinstance(run.data.train, str) else tuple(part.list for part in run.data.train)
        assert [train, run.evaluate.gallery, run.evaluate.query] == expected
        assert "lists" not in run.model_dump()["data"]  # config.yaml, checkpoints and results have the settings


def test_a_folder_of_lists_stands_for_three_settings(check_all):
    """Those that are set after it, or beside it in a file, remain."""
    check_all(check_lists, {words: (words, expected) for words, expected in FOLDERS.items()})
    run = load_run(SCE, ["data.lists=a/split{split}"], split=2)
    assert (run.data.train, run.evaluate.query) == ("a/split2/train.csv", "a/split2/test.csv")
    tree = read(SCE)
    run, _ = bind_config({**tree, "data": {**tree["data"], "lists": "a"}}, "a file with both")
    assert [run.data.train, run.evaluate.query] == [tree["data"]["train"], "a/test.csv"]
    with pytest.raises(ConfigError, match=r"data.lists: Input should be a valid string, got \[1\]"):
        load_run(SCE, ["data.lists=[1]"])
    (data,) = [part for name, part in schema()["$defs"].items() if name == "Data"]
    assert "lists" in data["properties"] and "train" not in data["required"]  # editors accept either
    assert data["anyOf"] == [{"required": ["lists"]}, {"required": ["train"]}]
