"""Train and test all runs of a study on one data set, over several seeds.

    python benchmarks/study.py configs/studies/methods.yaml --lists data/digits/colour --out output/studies/methods
    python benchmarks/study.py configs/studies/sce_video/lambda.yaml --lists lists/k200 --out output/studies/lambda

A study is a folder of configs, or a YAML file with a `config` and `runs`, each a name and settings that differ from
that config; `--cfg` puts another config in its place, for example a small one for a CPU; `--runs` selects runs. With
`knob`, the name of what varies, it is a sweep: its runs are named by the values of the knob, numbers, and OUT/sweep.png
has I_NCE and accuracies over them: of kNN, of the linear probe, and of the protocol order, if the config has it.

Each run is trained with `seed={split}` for the splits 1, 2, 3 and tested by `tools/train_net.py --splits`; `{split}`
may be part of --lists too. The untrained network is tested beside them. Meanwhile stderr has the last line of the log
of each run that is going on. The same command continues a study that was stopped. At the end a table is printed;
`results.json` of each run is in OUT/NAME, for `benchmarks/report.py`.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

from measure import table
from ruamel.yaml import YAML
from sweep_chart import sweep_chart

from vidssl.base.atomic import write_whole
from vidssl.base.config import read
from vidssl.base.errors import first_few
from vidssl.base.plugins import changed_files, modules_of, own_code
from vidssl.page.figure_style import png

ACCURACIES = ("kNN", "linear", "order", "order of pairs")  # in the chart of a sweep
UNTRAINED = ("retrieval", "knn", "svm", "uniformity")  # protocols of the untrained network, beside those of its config
REPORTED = 15.0  # seconds: as often as a run writes its progress to a file
TOOLS = Path(__file__).parents[1] / "tools"
RUNNING: set[int] = set()  # processes
COLUMNS = {
    "R@1": ("R@1", 100),
    "kNN": ("knn", 100),
    "linear": ("logistic", 100),
    "SVM": ("svm", 100),
    "top-1": ("top1", 100),
    "order": ("order", 100),
    "order of pairs": ("order_pairs", 100),
    "uniformity loss": ("uniformity_loss", 1),
}


def main() -> None:
    """Run all configs and print a table."""
    parser = argparse.ArgumentParser(description="Train and test all runs of a study, over several seeds.")
    parser.add_argument("study", type=Path, help="folder of configs, or YAML file with `config` and `runs`")
    parser.add_argument("--cfg", type=Path, help="config in place of that of a YAML file")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help="only these runs of the study")
    parser.add_argument("--lists", required=True, help="folder with train.csv and test.csv; may contain {split}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all runs")
    parsed = parser.parse_intermixed_args()
    runs, knob = read_runs(parsed.study, parsed.cfg)
    if unknown := [name for name in parsed.runs or () if name not in runs]:
        sys.exit(f"{parsed.study} has no run {', '.join(unknown)}; its runs: {', '.join(runs)}")
    runs = {name: run for name, run in runs.items() if parsed.runs is None or name in parsed.runs}
    if "untrained" in runs:
        sys.exit(f"{parsed.study}: rename the run untrained: that name is taken by the network before training")
    if parsed.jobs < 1:
        sys.exit(f"--jobs must be at least 1, got {parsed.jobs}")
    where = parsed.lists, parsed.out, parsed.splits, parsed.overrides
    commands = {"untrained": untrained(next(iter(runs.values())), *where)}
    for name, given in runs.items():
        commands[name] = trained(name, given, *where)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(parsed.jobs) as pool:
        try:
            failed = [name for name in pool.map(lambda name: run(parsed.out / name, commands[name]), commands) if name]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("saving and stopping; the same command continues", file=sys.stderr, flush=True)
            for process in RUNNING:
                os.kill(process, signal.SIGTERM)  # after Ctrl-C, which they received too, it has no effect
            sys.exit(130)
    print(summary(parsed.out, [name for name in commands if name not in failed]))
    if knob is not None and (done := [name for name in runs if name not in failed]):
        print(draw_sweep(parsed.out, done, knob))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; each has its log in {parsed.out}/NAME/log.txt")


Run = tuple[Path, Sequence[str]]  # a config, and the settings that differ from it


def read_runs(study: Path, config: Path | None) -> tuple[dict[str, Run], str | None]:
    """Read the runs of a study, a folder of configs or a YAML file, and its knob, if it is a sweep."""
    if study.is_dir() or not study.exists():
        if config is not None:
            sys.exit(f"--cfg replaces the config of a YAML file, and {study} is a folder")
        runs: dict[str, Run] = {path.stem: (path, ()) for path in sorted(study.glob("*.yaml"))}
        return (runs, None) if runs else sys.exit(f"no YAML files in {study}")
    content = YAML(typ="safe").load(study)
    if not isinstance(content, dict) or {*content} - {"knob"} != {"config", "runs"}:
        sys.exit(f"{study} is not a study: it needs `config` and `runs`, for a sweep `knob`, and nothing else")
    knob, named = content.get("knob"), content["runs"]
    words = [name for name in named if knob is not None and not isinstance(name, int | float)]
    if words:
        sys.exit(f"{study}: the run {words[0]} of a sweep is not a number: name it by the value of the knob")
    return {str(name): (config or Path(content["config"]), settings) for name, settings in named.items()}, knob


def trained(name: str, run: Run, lists: str, out: Path, splits: list[str], overrides: list[str]) -> list[str]:
    """Write the command that trains and tests a run."""
    config, settings = run
    where = [f"data.train={lists}/train.csv", f"evaluate.gallery={lists}/train.csv", f"evaluate.query={lists}/test.csv"]
    options = ["--cfg", str(config), "--splits", *splits, "seed={split}", *where, f"output={out / name}"]
    return [sys.executable, str(TOOLS / "train_net.py"), *options, *settings, *overrides]


def untrained(run: Run, lists: str, out: Path, splits: list[str], overrides: list[str]) -> list[str]:
    """Write the command that tests the network which trainings start from."""
    where = [f"{lists}/test.csv", "--train-list", f"{lists}/train.csv", "--out", str(out / "untrained")]
    asked = ["--protocol", *UNTRAINED, *own_protocols(run[0]), "--splits", *splits]
    given = ["--checkpoint", "random", "--cfg", str(run[0]), "seed={split}", *run[1], *overrides]
    return [sys.executable, str(TOOLS / "test_net.py"), *where, *given, *asked]


def own_protocols(config: Path) -> list[str]:
    """Write the protocols of a config that the untrained network is not tested with anyway, as words of --protocol."""
    evaluate = YAML(typ="safe").load(config).get("evaluate", {})
    words = []
    for name, settings in ((each["name"], each) for each in evaluate.get("protocols", ())):
        if name not in UNTRAINED:
            words += [name, *(f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "name")]
    return words


def run(out: Path, command: list[str]) -> str | None:
    """Run a command unless its results exist; keeps its log and CPU seconds. Returns its name if it failed."""
    request = {"command": command[2:], "config": Path(command[command.index("--cfg") + 1]).read_text()}
    kept = out / "seconds.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    other = any(before.get(key, value) != value for key, value in request.items())
    code = imported_code(command)
    changed = first_few(changed_files(before.get("code", code), code))
    if (out / "results.json").exists():
        if other or changed:
            what = f"other code, {changed} changed since" if changed else "another command or config"
            print(f"{out} has results of {what}: choose another --out", file=sys.stderr)
        return out.name if other or changed else None
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        RUNNING.add(process.pid)
        status, used = wait(process.pid, out)
        RUNNING.remove(process.pid)
    cpu = (0.0 if other else before.get("cpu", 0.0)) + used.ru_utime + used.ru_stime
    kept.write_text(json.dumps({"cpu": cpu, **request, "code": code}) + "\n")
    if status:
        said = (out / "log.txt").read_text(errors="replace").splitlines()[-1:]
        print(f"{out.name}: failed: {''.join(said)}", file=sys.stderr)
        return out.name
    print(f"{out.name}: {cpu:.0f} s", flush=True)
    return None


def imported_code(command: list[str]) -> dict[str, str]:
    """Return the hashes of the modules that a run imports, of its config or of a setting, and of their own imports."""
    config = read(command[command.index("--cfg") + 1], [word for word in command if word.startswith("imports=")])
    return own_code(modules_of(config, command[command.index("--cfg") + 1]))


def wait(process: int, out: Path) -> tuple[int, resource.struct_rusage]:
    """Wait for a run, and print the last line of its log every `REPORTED` seconds; return its status and what it used.

    Its CPU time does not depend on what else the machine does.
    """
    print(f"{out.name}: started, log in {out}/log.txt", file=sys.stderr, flush=True)
    printed, last = time.monotonic(), ""
    while True:
        ended, status, used = os.wait4(process, os.WNOHANG)
        if ended:
            return status, used
        if time.monotonic() - printed > REPORTED:
            lines = (out / "log.txt").read_text(errors="replace").splitlines()
            if lines and lines[-1] != last:
                last = lines[-1]
                print(f"{out.name}: {last}", file=sys.stderr, flush=True)
            printed = time.monotonic()
        time.sleep(0.1)


def draw_sweep(out: Path, names: Sequence[str], knob: str) -> Path:
    """Write the chart of a sweep; I_NCE is the mean of the last tenth of the lines that log it."""
    measured: dict[str, list[list[float]]] = {name: [] for name in ("I_NCE", *ACCURACIES)}
    for name in names:
        splits = json.loads((out / name / "results.json").read_text())["splits"]
        lines = [(out / name / f"split{split}" / "metrics.jsonl").read_text().splitlines() for split in splits]
        bounds = [[found["i_nce"] for found in map(json.loads, each) if "i_nce" in found] for each in lines]
        measured["I_NCE"].append([mean(each[-max(1, len(each) // 10) :]) for each in bounds if each])
        for label in ACCURACIES:
            key, scale = COLUMNS[label]
            measured[label].append([scale * found[key] for found in splits.values() if key in found])
    if any(measured["order of pairs"]):  # such a list has each motion and its reversal: `order` is at chance on it
        del measured["order"]
    file = out / "sweep.png"
    write_whole(file, png(sweep_chart(knob, [float(name) for name in names], measured)))
    return file


def _cell(value: float | None, spread: float | None, scale: float) -> str:
    """Format a number, with its spread over several splits."""
    if value is None:
        return "-"
    return f"{scale * value:.2f}" + ("" if spread is None else f" ± {scale * spread:.2f}")


def summary(out: Path, names: list[str]) -> str:
    """Table of all results and their CPU time."""
    rows, total = [], 0.0
    for name in names:
        results = json.loads((out / name / "results.json").read_text())
        seconds = out / name / "seconds.json"
        cpu = json.loads(seconds.read_text())["cpu"] if seconds.exists() else 0.0
        total += cpu
        spread = results["spread"] if len(results["splits"]) > 1 else {}
        numbers = [_cell(results["mean"].get(key), spread.get(key), scale) for key, scale in COLUMNS.values()]
        rows.append([name, *numbers, f"{cpu / len(results['splits']):.0f} s"])
    lines = table(["config", *COLUMNS, "CPU time of a run"], rows)
    return f"{lines}\n\n{total / 60:.0f} minutes of one core in all"


if __name__ == "__main__":
    main()
