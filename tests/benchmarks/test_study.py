"""benchmarks/study.py: finished runs are not repeated or confused, and signals reach running ones."""

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import pytest

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


def test_time_of_a_run_is_that_of_all_its_parts(study, tmp_path):
    run, out = study["run"], tmp_path / "out"

    def seconds():
        return json.loads((out / "seconds.json").read_text())["cpu"]

    assert run(out, command(tmp_path, "fail")) == "out"
    first = seconds()
    assert run(out, command(tmp_path, "fail")) == "out"
    assert seconds() > 1.3 * first > 0
    kept = seconds()
    assert run(out, command(tmp_path)) is None  # of another command: from 0
    assert 0 < seconds() < kept


def test_a_result_without_a_number_of_the_table_has_a_dash_there(study, tmp_path):
    study["run"](tmp_path / "out", command(tmp_path))
    assert "| out | 50.00 ± 0.00 | - | - |" in study["summary"](tmp_path, ["out"])


def test_a_study_file_names_runs_that_differ_from_a_config(study, tmp_path, monkeypatch):
    file, config = tmp_path / "study.yaml", tmp_path / "configs" / "a.yaml"
    file.write_text(
        f"config: {config}\nruns:\n  low: [method.coefficient=0.1]\n  high: [method.coefficient=0.9, steps=2]\n"
    )
    given = ["--lists", "x", "--out", str(tmp_path / "out"), "--splits", "1", "--jobs", "2"]
    monkeypatch.setattr(sys, "argv", ["study.py", str(file), *given])
    # The stand-in for the tool finds its folder after --out.
    trained = study["trained"]
    monkeypatch.setitem(
        study["main"].__globals__, "trained", lambda *a: [*trained(*a), "--out", str(tmp_path / "out" / a[0])]
    )
    study["main"]()
    asked = {
        name: json.loads((tmp_path / "out" / name / "seconds.json").read_text())["command"] for name in ("low", "high")
    }
    assert "method.coefficient=0.1" in asked["low"] and {"method.coefficient=0.9", "steps=2"} <= {*asked["high"]}
    assert all(str(config) in command for command in asked.values())
    other = tmp_path / "b.yaml"
    assert study["read_runs"](file, other)["low"] == (other, ["method.coefficient=0.1"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_what_runs_and_starts_nothing_more(study, tmp_path, number):
    given = ["study.py", str(tmp_path / "configs"), "--lists", "x", "--out", str(tmp_path / "s"), "wait"]
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
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
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert (untrained / "saved").exists()
    assert not (tmp_path / "s" / "a").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["none"], "no YAML files"),
        (["configs", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["named"], "named: rename the run untrained"),
        (["configs", "--cfg", "x.yaml"], "--cfg replaces the config of a YAML file, and .*configs is a folder"),
        (["configs/a.yaml"], r"a.yaml is not a study: it needs `config` and `runs`"),
    ],
)
def test_errors_are_one_line(study, tmp_path, monkeypatch, given, reason):
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "untrained.yaml").touch()
    folder, *more = given
    monkeypatch.setattr(sys, "argv", ["study.py", str(tmp_path / folder), "--lists", "x", "--out", "y", *more])
    with pytest.raises(SystemExit, match=reason):
        study["main"]()
