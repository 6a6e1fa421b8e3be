"""Compare what two checkouts of vidssl write: `python benchmarks/same_results.py OLD NEW [--only NAME …]`.

Both run the same commands on small rendered videos, in the same folder one after the other, so that paths are equal:
lists, a training, features, every measurement, and every page. All files are compared: JSON, arrays and weights by
value, other files by text or bytes. OLD runs twice: what differs between its runs, times and memory, is left out.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

MEASURED = ["--workers", "0", "--device", "cpu", "--clips", "1", "--crops", "1"]
TEST, TRAIN = "data/motion/test.csv", "data/motion/train.csv"
RUN = ["--checkpoint", "run", *MEASURED]
COMMANDS = {
    "digits": "prepare moving-digits --out data --train 40 --test 16 --frames 24 --size 48 --masks",
    "folder": "prepare folder data/videos --out folder",
    "show": f"show --cfg CFG data.moving_digits=null data.train={TRAIN} --out show --limit 3",
    "train": f"train --cfg CFG data.moving_digits=null data.train={TRAIN} output=run steps=4 data.workers=0 "
    f"evaluate.every=2 evaluate.gallery={TRAIN} evaluate.query={TEST}",
    "check": f"check {TEST} --out check --workers 1",
    "frames": f"shrink {TEST} --out frames --to frames --workers 1",
    "shrink": f"shrink {TEST} --out small --short-side 32 --workers 1",
    "track": f"track {TEST} --checkpoint run --workers 0 --device cpu --out tracks --overlay 2",
    "extract": f"extract {TEST} RUN --out features",
    "parts": f"extract {TEST} RUN --out parts --shard 0/2",
    "part": f"extract {TEST} RUN --out parts --shard 1/2",
    "merge": "merge --out parts",
    "test": f"test {TEST} RUN --train-list {TRAIN} --protocol retrieval knn svm lowshot uniformity --floors --out test",
    "order": f"test {TEST} RUN --train-list {TRAIN} --protocol order --out order",
    "retrieval": f"retrieval --gallery {TRAIN} --query {TEST} RUN --out search",
    "windows": f"retrieval --gallery {TRAIN} --query data/videos/test/00000.mp4 RUN --window 0.5 --out moments",
    "gradcam": f"retrieval --gallery {TRAIN} --query {TEST} RUN --gradcam --out search_gradcam",
    "map": f"map {TEST} RUN --layout pca --out map",
    "analyze": f"analyze all {TEST} RUN --train-list {TRAIN} --boxes data/boxes.csv --out analyses",
    "analyze gradcam": f"analyze gradcam {TEST} --checkpoint run --workers 0 --boxes data/boxes.csv --out gradcam",
    "compare": f"compare {TEST} --checkpoint run random --cfg CFG {' '.join(MEASURED)} --shots 1 --out compare",
    "export": "export run --to folder --out exported",
    "onnx": "export run --to onnx --out run.onnx",
    "schema": "schema",
}


def work(checkout: Path, folder: Path, names: list[str]) -> None:
    """Run the commands with the vidssl of a checkout in a folder."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    for name in names:
        words = COMMANDS[name].replace("RUN", " ".join(RUN)).replace("CFG", "toy/sce")
        command = [sys.executable, "-m", "vidssl", *words.split()]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        (folder / f"{name}.stdout").write_text(result.stdout)
        for path in (folder / "data").rglob("*") if name == "digits" else ():
            os.utime(path, (1e9, 1e9))  # copies and caches record the times of their originals
        if result.returncode:
            print(
                f"{checkout.name}: {name}: exit status {result.returncode}: {result.stderr.strip().splitlines()[-1:]}",
                flush=True,
            )


def content(path: Path) -> Any:
    """Return the content of a file in a form to compare."""
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [steady(json.loads(line)) for line in lines if line]
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False).tobytes()
    if path.suffix == ".npz":
        return {name: array.tobytes() for name, array in np.load(path, allow_pickle=False).items()}
    if path.suffix == ".pt":
        return steady(torch.load(path, weights_only=True, map_location="cpu"))
    data = path.read_bytes()
    if b"\0" in data:
        return hashlib.sha256(data).hexdigest()
    return data.decode(errors="replace")


def steady(tree: Any) -> Any:
    """Make values comparable: tensors by the hash of their bytes, numbers as they are written."""
    if isinstance(tree, dict):
        return {key: steady(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [steady(value) for value in tree]
    if isinstance(tree, torch.Tensor):
        return hashlib.sha256(tree.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return str(tree) if isinstance(tree, float) else tree


def differences(old: Any, new: Any, name: str = "") -> dict[str, str]:
    """Return the values that differ, by their names."""
    if isinstance(old, str) and isinstance(new, str) and "\n" in old and old.count("\n") == new.count("\n"):
        old, new = old.split("\n"), new.split("\n")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return {} if old == new else {name: f"{str(old)[:200]} | {str(new)[:200]}"}
    changed: dict[str, str] = {}
    for key in {**old, **new}:
        changed |= differences(old.get(key), new.get(key), f"{name}.{key}")
    return changed


def differing_files(old: Path, new: Path) -> dict[str, str]:
    """Return what differs between two folders, by file and name."""
    names = {path.relative_to(top).as_posix() for top in (old, new) for path in top.rglob("*") if path.is_file()}
    changed: dict[str, str] = {}
    for name in sorted(name for name in names if "events.out" not in name):
        if (old / name).is_file() and (new / name).is_file():
            changed |= differences(content(old / name), content(new / name), name)
        else:
            changed[name] = f"only in {'old' if (old / name).is_file() else 'new'}"
    return changed


def main() -> None:
    """Run both, and print every difference; the exit status is 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=[*COMMANDS], metavar="NAME")
    parser.add_argument("--out", type=Path, help="new folder that keeps what both wrote")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = parsed.out or Path(temporary) / "out"
        if out.exists():
            parser.error(f"{out} exists: name a new folder")
        out.mkdir(parents=True)
        for name, checkout in (("old", parsed.old), ("again", parsed.old), ("new", parsed.new)):
            work(checkout.resolve(), out / "work", parsed.only)
            (out / "work").rename(out / name)
        varying = differing_files(out / "old", out / "again")
        changed = differing_files(out / "old", out / "new")
        changed = {name: values for name, values in changed.items() if name not in varying}
        for name, values in changed.items():
            print(f"{name}: {values}")
        print(f"{len(parsed.only)} commands, {len(changed)} differences; {len(varying)} values vary by themselves")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
