"""Train and test all runs of a study on one data set, over several seeds.

    python benchmarks/study.py configs/studies/methods.yaml --lists data/digits/colour --out output/studies/methods
    python benchmarks/study.py configs/studies/sce_video/lambda.yaml --lists lists/k200 --out output/studies/lambda

A study is a folder of configs, or a YAML file with a `config` and `runs`, each a name and settings that differ from
that config; `--cfg` puts another config in its place, for example a small one for a CPU; `--runs` selects runs. With
`knob`, the name of what varies, it is a sweep: its runs are named by the values of the knob, numbers, and OUT/sweep.png
has I_NCE and accuracies over them: of kNN, of the linear probe, and of the protocol order, if the config has it.

Each run is trained for the splits 1, 2, 3 (`--splits`) and tested by `tools/train_net.py --splits`; --lists contains
`{split}`. `--seeds 0 1 2` trains each split with each seed, in OUT/NAME/seedN. Without it a split has its own number as
seed: ± is then of lists and seeds together. If --lists has no `{split}`, the splits are seeds. The untrained network is
tested beside them, with the same seeds; if encoders or clips of the runs differ, each is, as untrained-NAME, where NAME
is the first run that has them. Meanwhile stderr has the last line of the log of each run that is going on. The
same command continues a study that was stopped. At the end a table is printed, and what its ± is; `results.json` of
each run is in OUT/NAME, for `benchmarks/report.py`.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from measure import table
from ruamel.yaml import YAML
from sweep_chart import sweep_chart

from vidssl.base.atomic import write_whole
from vidssl.base.config import plain, read
from vidssl.base.errors import DataError, VidsslError, first_few
from vidssl.base.output_folder import claim
from vidssl.base.plugins import changed_files, modules_of, own_code
from vidssl.data.clip_samplers import ClipSettings
from vidssl.page.figure_style import png
from vidssl.video.reader import DecodeSettings

ACCURACIES = ("kNN", "linear", "order", "order of pairs")  # in the chart of a sweep
UNTRAINED = ("retrieval", "knn", "svm", "uniformity")  # protocols of the untrained network, beside those of its config
REPORTED = 15.0  # seconds: as often as a run writes its progress to a file
TOOLS = Path(__file__).parents[1] / "tools"
DECODED = {*DecodeSettings.model_fields, "mean", "std"} - {"cache"}  # of `data`, what decides the pixels
NOT_OF_TEST = ("every", "gallery", "query", "labels", "beside", "protocols", "batch_size")  # of `evaluate`
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
    parser.add_argument("--splits", nargs="+", metavar="N", help="default: 1 2 3")
    parser.add_argument("--seeds", nargs="+", metavar="N", help="of each split; default: its number")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all runs")
    parsed = parser.parse_intermixed_args()
    for words in (parsed.runs or [], parsed.splits or [], parsed.seeds or []):  # settings may follow their numbers
        parsed.overrides += [word for word in words if "=" in word]
        words[:] = [word for word in words if "=" not in word]
    if wrong := [word for word in (*(parsed.splits or ()), *(parsed.seeds or ())) if not word.isdecimal()]:
        sys.exit(f"--splits and --seeds are whole numbers, got {wrong[0]}")
    runs, knob = read_runs(parsed.study, parsed.cfg)
    if unknown := [name for name in parsed.runs or () if name not in runs]:
        sys.exit(f"{parsed.study} has no run {', '.join(unknown)}; its runs: {', '.join(runs)}")
    runs = {name: run for name, run in runs.items() if parsed.runs is None or name in parsed.runs}
    if taken := [name for name in runs if name.startswith("untrained")]:
        sys.exit(f"{parsed.study}: rename the run {taken[0]}: networks before training have such names")
    if parsed.jobs < 1:
        sys.exit(f"--jobs must be at least 1, got {parsed.jobs}")
    splits, seeds = splits_and_seeds(parsed, runs)
    try:
        commands, before = {}, untrained_runs(runs, parsed.overrides)
    except VidsslError as error:
        sys.exit(f"error: {error}")
    for name, run in {**before, **runs}.items():
        for seed in seeds or ("{split}",):
            run_name = f"{name}/seed{seed}" if seeds else name
            command = untrained if name in before else trained
            commands[run_name] = command(run, parsed.lists, parsed.out / run_name, splits, seed, parsed.overrides)
    failed = run_all(parsed.out, commands, parsed.jobs)
    names = [name for name in (*before, *runs) if not any(key.split("/seed")[0] == name for key in failed)]
    if seeds:
        for name in names:
            join_seeds(parsed.out / name, seeds)
    varied = _count(splits, "split" if "{split}" in parsed.lists else "seed")
    if seeds:
        varied += f" x {_count(seeds, 'seed')}"
    elif "{split}" in parsed.lists:
        varied += f", {'each with ' * (len(splits) > 1)}its number as seed"
    print(summary(parsed.out, names, varied))
    if knob is not None and (done := [name for name in runs if name in names]):
        print(draw_sweep(parsed.out, done, knob, varied))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; each has its log in {parsed.out}/NAME/log.txt")


Run = tuple[Path, Sequence[str]]  # a config, and the settings that differ from it


def untrained_runs(runs: Mapping[str, Run], overrides: list[str]) -> dict[str, Run]:
    """Return runs whose untrained networks are tested: one of each encoder, its clips and its test."""
    first: dict[str, str] = {}
    for name, (config, settings) in runs.items():
        tree = plain(read(config, [*(settings or ()), *overrides]), str(config))
        data, evaluate = tree.get("data", {}), dict(tree.get("evaluate", {}))
        clip = {key: value for key, value in data.get("sampler", {}).items() if key in ClipSettings.model_fields}
        size = evaluate.pop("size", None) or data.get("views", [{}])[0].get("size")
        layer = [tree.get("method", {}).get(key) for key in ("layer", "grid", "grid_frames")]
        pixels = {key: value for key, value in data.items() if key in DECODED}
        of_test = {key: value for key, value in evaluate.items() if key not in NOT_OF_TEST}
        first.setdefault(json.dumps([tree.get("backbone"), clip, size, layer, pixels, of_test]), name)
    return {"untrained" + f"-{name}" * (len(first) > 1): runs[name] for name in first.values()}


def splits_and_seeds(parsed: argparse.Namespace, runs: Mapping[str, "Run"]) -> tuple[list[str], list[str] | None]:
    """Return the splits, which are seeds if the lists do not differ, and the seeds of each; None: its number."""
    settings = chain(parsed.overrides, *(words or () for _, words in runs.values()))
    if parsed.seeds and (fixed := [word for word in settings if word.startswith("seed=")]):
        sys.exit(f"--seeds sets the seed: leave {fixed[0]} out")
    if parsed.seeds and "{split}" not in parsed.lists:
        if parsed.splits:
            sys.exit(f"--splits with --seeds needs {{split}} in --lists, got {parsed.lists}: leave --splits out")
        return parsed.seeds, None
    if parsed.seeds:
        for name in ("untrained", *runs):
            file = parsed.out / name / "results.json"
            if file.exists() and "seeds" not in json.loads(file.read_text()):
                sys.exit(f"{file.parent} has results of a study without --seeds: choose another --out")
    return parsed.splits or ["1", "2", "3"], parsed.seeds


def run_all(out: Path, commands: Mapping[str, list[str]], jobs: int) -> list[str]:
    """Run commands, `jobs` at a time, each with its name as folder; return the names of those that failed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            succeeded = [*pool.map(lambda name: run(name, out / name, commands[name]), commands)]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("saving and stopping; the same command continues", file=sys.stderr, flush=True)
            for process in RUNNING:
                os.kill(process, signal.SIGTERM)  # after Ctrl-C, which they received too, it has no effect
            sys.exit(130)
    return [name for name, success in zip(commands, succeeded, strict=True) if not success]


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


def trained(run: Run, lists: str, out: Path, splits: list[str], seed: str, overrides: list[str]) -> list[str]:
    """Write the command that trains and tests a run."""
    config, settings = run
    options = ["--cfg", str(config), "--splits", *splits, f"seed={seed}", f"data.lists={lists}", f"output={out}"]
    return [sys.executable, str(TOOLS / "train_net.py"), *options, *(settings or ()), *overrides]


def untrained(run: Run, lists: str, out: Path, splits: list[str], seed: str, overrides: list[str]) -> list[str]:
    """Write the command that tests the network which trainings start from."""
    where = [f"{lists}/test.csv", "--train-list", f"{lists}/train.csv", "--out", str(out)]
    asked = ["--protocol", *UNTRAINED, *own_protocols(run[0]), "--splits", *splits]
    given = ["--checkpoint", "random", "--cfg", str(run[0]), f"seed={seed}", *(run[1] or ()), *overrides]
    return [sys.executable, str(TOOLS / "test_net.py"), *where, *given, *asked]


def own_protocols(config: Path) -> list[str]:
    """Write the protocols of a config that the untrained network is not tested with anyway, as words of --protocol."""
    evaluate = YAML(typ="safe").load(config).get("evaluate", {})
    words = []
    for name, settings in ((each["name"], each) for each in evaluate.get("protocols", ())):
        if name not in UNTRAINED:
            words += [name, *(f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "name")]
    return words


def run(name: str, out: Path, command: list[str]) -> bool:
    """Run a command unless its results exist; keeps its log and CPU seconds. Returns whether it has results."""
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
        return not (other or changed)
    try:  # in the name of the command, which fills no folder of others: the log comes first
        claim(out, "splits" if Path(command[1]).name == "train_net.py" else "test")
    except DataError as error:
        print(f"{name}: failed: {error}", file=sys.stderr)
        return False
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.txt").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        RUNNING.add(process.pid)
        status, used = wait(name, process.pid, out / "log.txt")
        RUNNING.remove(process.pid)
    cpu = (0.0 if other else before.get("cpu", 0.0)) + used.ru_utime + used.ru_stime
    kept.write_text(json.dumps({"cpu": cpu, **request, "code": code}) + "\n")
    if status:
        said = (out / "log.txt").read_text(errors="replace").splitlines()[-1:]
        print(f"{name}: failed: {''.join(said)}", file=sys.stderr)
    else:
        print(f"{name}: {cpu:.0f} CPU seconds", flush=True)
    return not status


def imported_code(command: list[str]) -> dict[str, str]:
    """Return the hashes of the modules that a run imports, of its config or of a setting, and of their own imports."""
    config = read(command[command.index("--cfg") + 1], [word for word in command if word.startswith("imports=")])
    return own_code(modules_of(config, command[command.index("--cfg") + 1]))


def wait(name: str, process: int, log: Path) -> tuple[int, resource.struct_rusage]:
    """Wait for a run, and print the last line of its log every `REPORTED` seconds; return its status and what it used.

    Its CPU time does not depend on what else the machine does.
    """
    print(f"{name}: started, log in {log}", file=sys.stderr, flush=True)
    printed, last = time.monotonic(), ""
    while True:
        ended, status, used = os.wait4(process, os.WNOHANG)
        if ended:
            return status, used
        if time.monotonic() - printed > REPORTED:
            lines = log.read_text(errors="replace").splitlines()
            if lines and lines[-1] != last:
                last = lines[-1]
                print(f"{name}: {last}", file=sys.stderr, flush=True)
            printed = time.monotonic()
        time.sleep(0.1)


def join_seeds(out: Path, seeds: Sequence[str]) -> None:
    """Write `results.json` and `seconds.json` of all seeds of a run, from those in the folder of each."""
    folders = [out / f"seed{seed}" for seed in seeds]
    joined = over_seeds({seed: json.loads((out / f"seed{seed}" / "results.json").read_text()) for seed in seeds})
    write_whole(out / "results.json", json.dumps(joined, indent=1).encode())
    cpu = sum(json.loads((folder / "seconds.json").read_text())["cpu"] for folder in folders)
    write_whole(out / "seconds.json", json.dumps({"cpu": cpu, "command": None}).encode())  # `run` refuses the folder


def over_seeds(of_seeds: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Join the results over splits of several seeds: the rest is that of the first seed.

    A split has the mean over seeds of each number, `mean` and `spread` are those of these means over splits, and
    `seed_spread` is the mean over splits of the standard deviation (n - 1) over the seeds of a split.
    """
    first, *_ = of_seeds.values()
    names = [name for name in first["mean"] if all(name in results["mean"] for results in of_seeds.values())]
    values = {
        name: {n: [results["splits"][n][name] for results in of_seeds.values()] for n in first["splits"]}
        for name in names
    }
    means = {name: {n: mean(row) for n, row in rows.items()} for name, rows in values.items()}
    of_splits = {
        split: {**rest, **{name: means[name][split] for name in names}} for split, rest in first["splits"].items()
    }
    several_splits, several_seeds = len(of_splits) > 1, len(of_seeds) > 1
    return {
        **{name: value for name, value in first.items() if name != "request"},
        "seeds": [*of_seeds],
        "splits": of_splits,
        "mean": {name: mean(row.values()) for name, row in means.items()},
        "spread": {name: stdev(row.values()) for name, row in means.items()} if several_splits else {},
        "seed_spread": {n: mean(map(stdev, rows.values())) for n, rows in values.items()} if several_seeds else {},
    }


def draw_sweep(out: Path, names: Sequence[str], knob: str, varied: str) -> Path:
    """Write the chart of a sweep; I_NCE is the mean of the last tenth of the lines that log it."""
    measured: dict[str, list[list[float]]] = {name: [] for name in ("I_NCE", *ACCURACIES)}
    for name in names:
        seeds = json.loads((out / name / "results.json").read_text()).get("seeds")
        folders = [out / name / f"seed{seed}" for seed in seeds] if seeds else [out / name]
        splits = {
            folder / f"split{split}": numbers
            for folder in folders
            for split, numbers in json.loads((folder / "results.json").read_text())["splits"].items()
        }
        lines = [(folder / "metrics.jsonl").read_text().splitlines() for folder in splits]
        bounds = [[found["i_nce"] for found in map(json.loads, each) if "i_nce" in found] for each in lines]
        measured["I_NCE"].append([mean(each[-max(1, len(each) // 10) :]) for each in bounds if each])
        for label in ACCURACIES:
            key, scale = COLUMNS[label]
            measured[label].append([scale * found[key] for found in splits.values() if key in found])
    if any(measured["order of pairs"]):  # such a list has each motion and its reversal: `order` is at chance on it
        del measured["order"]
    file = out / "sweep.png"
    write_whole(file, png(sweep_chart(knob, [float(name) for name in names], measured, varied)))
    return file


def _count(numbers: Sequence[str], name: str) -> str:
    return f"{len(numbers)} {name}{'s' * (len(numbers) > 1)}"


def _cell(value: float | None, spread: float | None, seed_spread: float | None, scale: float) -> str:
    """Format a number, with its spread over splits and, in brackets, over seeds."""
    if value is None:
        return "-"
    text = f"{scale * value:.2f}" + ("" if spread is None else f" ± {scale * spread:.2f}")
    return text + ("" if seed_spread is None else f" ({scale * seed_spread:.2f})")


def summary(out: Path, names: list[str], varied: str) -> str:
    """Table of all results and their CPU time, below what its spreads are of; `varied` are the splits and seeds."""
    rows, total, brackets = [], 0.0, False
    for name in names:
        results = json.loads((out / name / "results.json").read_text())
        seconds = out / name / "seconds.json"
        cpu = json.loads(seconds.read_text())["cpu"] if seconds.exists() else 0.0
        total += cpu
        spread, of_seeds = results["spread"] if len(results["splits"]) > 1 else {}, results.get("seed_spread", {})
        brackets = brackets or bool(of_seeds)
        numbers = [
            _cell(results["mean"].get(key), spread.get(key), of_seeds.get(key), scale)
            for key, scale in COLUMNS.values()
        ]
        rows.append([name, *numbers, f"{cpu / len(results['splits']) / len(results.get('seeds', 'x')):.0f}"])
    head = varied if varied.startswith("1 ") else f"{varied}; mean ± standard deviation over them"
    if " x " in varied:
        several = not varied.startswith("1 ")
        head = f"{varied}; mean{' ± standard deviation over splits of the means over seeds' * several}"
        if brackets:
            head += f" (standard deviation over the seeds{' of a split, averaged over splits' * several})"
    lines = table(["config", *COLUMNS, "CPU seconds of a run"], rows)
    return f"{head}\n\n{lines}\n\n{total / 60:.0f} CPU minutes in all"


if __name__ == "__main__":
    main()
