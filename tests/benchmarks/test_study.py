"""benchmarks/study.py: splits and seeds, finished runs are not repeated or confused, signals reach running ones."""

import json
import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
TOOL = """
import json, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
def stop(number, frame):
    (out / "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
with (out / "runs").open("a") as file:
    file.write("x")
sum(range(10**6))
if "fail" in sys.argv:
    sys.exit(2)
if "talk" in sys.argv:
    for step in range(4):
        print(f"train: {step} of 4 steps", flush=True)
        time.sleep(0.5)
if "wait=1" in sys.argv:
    time.sleep(60)
(out / "results.json").write_text(json.dumps({"mean": {"R@1": 0.5}, "spread": {}, "splits": [1]}))
"""


@pytest.fixture
def study(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # where `measure` is
    (tmp_path / "tools").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text("steps: 1\n")
    names = runpy.run_path(str(ROOT / "benchmarks" / "study.py"), run_name="study")
    for tool in ("test_net", "train_net"):
        (tmp_path / "tools" / f"{tool}.py").write_text(TOOL)
    names["main"].__globals__["TOOLS"] = tmp_path / "tools"
    return names


def command(folder, *more):
    tool = str(folder / "tools" / "test_net.py")
    return [sys.executable, tool, "--cfg", str(folder / "configs" / "a.yaml"), "--out", str(folder / "out"), *more]


def test_results_are_made_once_and_those_of_another_command_or_config_are_refused(study, tmp_path, capsys):
    out = tmp_path / "out"

    def run(*more):
        return study["run"]("a", out, command(tmp_path, *more))

    assert run() and run()
    assert (out / "runs").read_text() == "x"
    assert not run("seed=1")
    (tmp_path / "configs" / "a.yaml").write_text("steps: 2\n")
    assert not run()
    assert (out / "runs").read_text() == "x"
    said = capsys.readouterr()
    assert said.err.count("another --out") == 2 and re.fullmatch(r"a: \d+ CPU seconds\n", said.out)


def test_what_the_spreads_of_splits_and_seeds_are(study, tmp_path):
    """Against numpy, of numbers[split, seed]."""
    numbers = torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    of_seeds = {}
    for seed in range(2):
        column = numbers[:, seed]
        splits = {str(n + 1): {"knn": float(x), "num_videos": 4} for n, x in enumerate(column)}
        of_seeds[str(seed)] = {"splits": splits, "mean": {"knn": column.mean()}, "list": "a", "request": {}}
    joined = study["over_seeds"](of_seeds)
    means = numbers.mean(axis=1)
    assert {n: split["knn"] for n, split in joined["splits"].items()} == pytest.approx(
        dict(zip("123", means, strict=True))
    )
    assert joined["mean"]["knn"] == pytest.approx(numbers.mean())
    assert joined["spread"]["knn"] == pytest.approx(means.std(ddof=1))
    assert joined["seed_spread"]["knn"] == pytest.approx(numbers.std(axis=1, ddof=1).mean())
    assert joined["seeds"] == ["0", "1"] and joined["list"] == "a" and "request" not in joined
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results.json").write_text(json.dumps(joined))
    (tmp_path / "a" / "seconds.json").write_text('{"cpu": 60.0}')
    text = study["summary"](tmp_path, ["a"], "3 splits x 2 seeds")
    cell = "{:.2f} ± {:.2f} ({:.2f})".format(
        *(100 * x for x in (numbers.mean(), means.std(ddof=1), numbers.std(axis=1, ddof=1).mean()))
    )
    assert f"| a | - | {cell} |" in text and "| 10 |" in text and "1 CPU minutes in all" in text
    assert text.startswith(
        "3 splits x 2 seeds; mean ± standard deviation over splits of the means over seeds (standard "
    )
    of_one = study["over_seeds"]({"5": of_seeds["1"]})
    assert of_one["seed_spread"] == {} and of_one["spread"]["knn"] == pytest.approx(numbers[:, 1].std(ddof=1))


@pytest.mark.parametrize(
    ("lists", "options", "splits", "seed", "varied"),
    [
        (
            "a{split}",
            [],
            "1 2 3",
            "{split}",
            "3 splits, each with its number as seed; mean ± standard deviation over them",
        ),
        ("a", ["--splits", "4", "5"], "4 5", "{split}", "2 seeds; mean ± standard deviation over them"),
        ("a", ["--seeds", "6", "7"], "6 7", "{split}", "2 seeds; mean ± standard deviation over them"),
        ("a", ["--seeds", "6"], "6", "{split}", "1 seed\n"),
        (
            "a{split}",
            ["--seeds", "6"],
            "1 2 3",
            "6",
            "3 splits x 1 seed; mean ± standard deviation over splits of the means",
        ),
    ],
)
def test_what_is_run_and_what_the_table_says_of_it(
    study, tmp_path, monkeypatch, capsys, lists, options, splits, seed, varied
):
    words = ["study.py", str(tmp_path / "configs"), "--lists", lists, "--out", str(tmp_path / "s"), *options]
    commands = {}
    monkeypatch.setitem(
        study["main"].__globals__, "run_all", lambda out, arguments, jobs: commands.update(arguments) or [*arguments]
    )
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="failed: "):
        study["main"]()
    suffix = "" if seed == "{split}" else f"/seed{seed}"
    assert [*commands] == [f"untrained{suffix}", f"a{suffix}"]
    for words in commands.values():
        text = " ".join(words)
        assert f"--splits {splits}" in text and f" seed={seed}" in text
    assert f"data.lists={lists} output={tmp_path}/s/a{suffix}" in " ".join(commands[f"a{suffix}"])
    assert capsys.readouterr().out.startswith(varied)


def test_two_splits_with_two_seeds(study, tmp_path, digits, forked_python, monkeypatch, capsys):
    for split, labels in enumerate(("motion", "colour"), 1):
        (tmp_path / f"split{split}").symlink_to(digits / labels)
    (tmp_path / "study.yaml").write_text(f"config: {ROOT}/configs/toy/sce.yaml\nknob: queue\nruns: {{50: []}}\n")
    monkeypatch.setitem(study["main"].__globals__, "TOOLS", ROOT / "tools")
    monkeypatch.setattr(sys, "executable", str(forked_python))
    out = tmp_path / "s"
    words = ["study.py", str(tmp_path / "study.yaml"), "--lists", f"{tmp_path}/split{{split}}", "--out", str(out)]
    words += ["--splits", "1", "2", "--seeds", "0", "1", "steps=2", "data.moving_digits=null", "data.workers=0"]
    monkeypatch.setattr(sys, "argv", [*words, "evaluate.clips=1", "data.sampler.frames=2"])
    monkeypatch.setitem(study["main"].__globals__, "UNTRAINED", ("retrieval", "knn", "uniformity"))
    study["main"]()
    first = capsys.readouterr()
    for name in ("untrained", "50"):
        of_seeds = [json.loads((out / name / f"seed{seed}" / "results.json").read_text()) for seed in (0, 1)]
        joined = json.loads((out / name / "results.json").read_text())
        for key in ("knn", "R@1", "uniformity_loss"):
            x = np.array([[results["splits"][split][key] for results in of_seeds] for split in "12"])
            assert joined["mean"][key] == pytest.approx(x.mean())
            assert joined["spread"][key] == pytest.approx(x.mean(axis=1).std(ddof=1), abs=1e-12)
            assert joined["seed_spread"][key] == pytest.approx(x.std(axis=1, ddof=1).mean(), abs=1e-12)
        assert x[0, 0] != x[0, 1]  # of the uniformity: seeds differ before and after the training
    run = YAML(typ="safe").load(out / "50" / "seed1" / "split2" / "config.yaml")
    assert run["seed"] == 1 and run["data"]["train"] == run["evaluate"]["gallery"] == f"{tmp_path}/split2/train.csv"
    study["main"]()  # all is there
    again = capsys.readouterr()
    assert first.out.endswith(again.out) and "CPU seconds" in first.out and again.err == ""
    assert (out / "sweep.png").exists()
    monkeypatch.setattr(sys, "argv", words[: words.index("--seeds")])  # does not take the others' results for its own
    with pytest.raises(SystemExit, match="failed: untrained, 50"):
        study["main"]()
    assert f"{out}/50 has results of another command or config: choose another --out" in capsys.readouterr().err


def test_each_encoder_and_clip_has_its_untrained_network(study, tmp_path):
    (tmp_path / "a.yaml").write_text(
        "{data: {sampler: {name: random, frames: 4, min_gap: 3}, views: [{size: 32}]}, backbone: {name: a, width: 8}, "
        "method: {name: moco}, evaluate: {clips: 2, query: a.csv}}"
    )
    settings = {"moco": [], "wide": ["backbone.width=16"], "long": ["data.sampler.frames=8"]}
    settings |= {
        "sce": ["method={name: sce}", "data.sampler.min_gap=5", "data.views.0.size=32", "evaluate.query=b.csv"]
    }
    settings |= {"large": ["evaluate.size=64"], "wide, longer": ["backbone.width=16", "steps=9"]}
    runs = {name: (tmp_path / "a.yaml", words) for name, words in settings.items()}
    first = study["untrained_runs"](runs, [])
    assert first == {f"untrained-{name}": runs[name] for name in ("moco", "wide", "long", "large")}
    overrides = ["backbone={name: b}", "evaluate.size=8", "data.sampler.frames=2"]
    assert study["untrained_runs"](runs, overrides) == {"untrained": runs["moco"]}


def test_a_sweep_has_a_chart_of_what_its_seeds_measured(study, tmp_path, monkeypatch):
    file, drawn = tmp_path / "sweep.yaml", []
    file.write_text("config: x.yaml\nknob: sigma\nruns:\n  0.5: [a=1]\n  2: [a=2]\n")
    runs, knob = study["read_runs"](file, None)
    assert knob == "sigma" and [*runs] == ["0.5", "2"]
    for name in runs:
        measured = {
            str(split): {"knn": float(name) / 10 + split / 100, "order": 0.5, "order_pairs": 0.7} for split in (1, 2)
        }
        for split in measured:
            folder = tmp_path / name / f"split{split}"
            folder.mkdir(parents=True)
            lines = [{"step": n, "i_nce": float(name) + n * (int(split) - 1)} for n in range(1, 21)]
            (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"step": 20, "knn": 0.0}])))
        (tmp_path / name / "results.json").write_text(json.dumps({"splits": {int(k): v for k, v in measured.items()}}))
    draw = study["draw_sweep"]
    chart = draw.__globals__["sweep_chart"]
    monkeypatch.setitem(draw.__globals__, "sweep_chart", lambda *options: drawn.append(options) or chart(*options))
    assert draw(tmp_path, [*runs], knob, "2 seeds").read_bytes().startswith(b"\x89PNG")
    ((label, values, series, dots),) = drawn
    assert (label, values, dots) == ("sigma", [0.5, 2.0], "2 seeds")
    assert series["I_NCE"] == [[0.5, 20.0], [2.0, 21.5]]  # the mean of the last two of twenty lines: 19 and 20
    assert series["kNN"] == [pytest.approx([6.0, 7.0]), pytest.approx([21.0, 22.0])] and series["linear"] == [[], []]
    # On such a list `order` is at chance by construction.
    assert series["order of pairs"] == [pytest.approx([70.0, 70.0])] * 2 and "order" not in series


def test_a_signal_stops_what_runs_and_starts_nothing_more(study, tmp_path):
    arguments = ["study.py", str(tmp_path / "configs"), "--lists", "x", "--out", str(tmp_path / "s"), "wait=1"]
    child = os.fork()
    if not child:
        status = 1
        try:
            sys.argv = arguments
            study["main"]()
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    untrained = tmp_path / "s" / "untrained"
    for _ in range(300):
        if (untrained / "runs").exists():
            break
        time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert (untrained / "saved").exists()
    assert not (tmp_path / "s" / "a").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["none"], "no YAML files"),
        (["configs", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["named"], "named: rename the run untrained-a"),
        (["words.yaml"], "the run low of a sweep is not a number"),
        (["configs/a.yaml"], r"a.yaml is not a study: it needs `config` and `runs`"),
        (["configs", "--seeds", "1", "--splits", "1"], "--splits with --seeds needs {split} in --lists, got x"),
        (["configs", "steps"], "error: override 'steps' is not KEY=VALUE"),
        (["configs", "--seeds", "1", "seed=3"], "--seeds sets the seed: leave seed=3 out"),
        (["configs", "--splits", "1", "2a"], "--splits and --seeds are whole numbers, got 2a"),
    ],
)
def test_errors_are_one_line(study, tmp_path, monkeypatch, given, reason):
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "untrained-a.yaml").touch()
    (tmp_path / "words.yaml").write_text("config: x.yaml\nknob: sigma\nruns: {1.0: [], low: []}\n")
    folder, *more = given
    monkeypatch.setattr(sys, "argv", ["study.py", str(tmp_path / folder), "--lists", "x", "--out", "y", *more])
    with pytest.raises(SystemExit, match=reason):
        study["main"]()


STUDIES = [
    path
    for folder in ("configs", "examples")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if re.search("^runs:", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_command_of_a_study_leaves_what_tells_its_runs_apart(path):
    """Settings of the command come last, and replace those of a run."""
    text = path.read_text()
    header = "".join(line[1:] for line in text.splitlines(keepends=True) if line.startswith("#"))
    keys = {*re.findall(r"(?:^|[\s'\"])([a-z_][\w.]*)=", header)}
    for name, settings in YAML(typ="safe").load(text)["runs"].items():
        replaced = {setting.split("=")[0] for setting in settings or ()} & keys
        assert not replaced, f"run {name}: {replaced}"
