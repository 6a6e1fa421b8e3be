"""benchmarks/study.py: finished runs are not repeated or confused, and signals reach running ones."""

import json
import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest
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
if "wait" in sys.argv:
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
    run, out = study["run"], tmp_path / "out"
    assert run(out, command(tmp_path)) is None
    assert run(out, command(tmp_path)) is None
    assert (out / "runs").read_text() == "x"
    assert run(out, command(tmp_path, "seed=1")) == "out"
    (tmp_path / "configs" / "a.yaml").write_text("steps: 2\n")
    assert run(out, command(tmp_path)) == "out"
    assert (out / "runs").read_text() == "x"
    assert capsys.readouterr().err.count("another --out") == 2


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
    monkeypatch.setitem(draw.__globals__, "sweep_chart", lambda *given: drawn.append(given) or chart(*given))
    assert draw(tmp_path, [*runs], knob).read_bytes().startswith(b"\x89PNG")
    ((label, values, series),) = drawn
    assert (label, values) == ("sigma", [0.5, 2.0])
    assert series["I_NCE"] == [[0.5, 20.0], [2.0, 21.5]]  # the mean of the last two of twenty lines: 19 and 20
    assert series["kNN"] == [pytest.approx([6.0, 7.0]), pytest.approx([21.0, 22.0])] and series["linear"] == [[], []]
    # On such a list `order` is at chance by construction.
    assert series["order of pairs"] == [pytest.approx([70.0, 70.0])] * 2 and "order" not in series


def test_a_signal_stops_what_runs_and_starts_nothing_more(study, tmp_path):
    given = ["study.py", str(tmp_path / "configs"), "--lists", "x", "--out", str(tmp_path / "s"), "wait"]
    child = os.fork()
    if not child:
        status = 1
        try:
            sys.argv = given
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
        (["named"], "named: rename the run untrained"),
        (["words.yaml"], "the run low of a sweep is not a number"),
        (["configs/a.yaml"], r"a.yaml is not a study: it needs `config` and `runs`"),
    ],
)
def test_errors_are_one_line(study, tmp_path, monkeypatch, given, reason):
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "untrained.yaml").touch()
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
    given = {*re.findall(r"(?:^|[\s'\"])([a-z_][\w.]*)=", header)}
    for name, settings in YAML(typ="safe").load(text)["runs"].items():
        replaced = {setting.split("=")[0] for setting in settings or ()} & given
        assert not replaced, f"run {name}: {replaced}"
