"""Run the examples of the gallery, and store the image and the printed text of each for their pages.

    python docs/builder/run_gallery.py [NAME …]

Minutes; `make gallery` runs it. The site shows what is stored, so run it after a change of an example.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES, STORED = ROOT / "examples" / "gallery", ROOT / "docs" / "images" / "gallery"


def main() -> None:
    """Run the examples in an empty folder."""
    STORED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for script in sorted(EXAMPLES.glob("*.py")):
            if len(sys.argv) > 1 and script.stem not in sys.argv[1:]:
                continue
            start, cpu = time.monotonic(), sum(os.times()[:4])
            printed = run_example(script, Path(folder))
            (STORED / f"{script.stem}.txt").write_text(printed, encoding="utf-8")
            shutil.copyfile(Path(folder, "output", "gallery", f"{script.stem}.png"), STORED / f"{script.stem}.png")
            spent = f"{time.monotonic() - start:.0f} s, CPU time {sum(os.times()[:4]) - cpu:.0f} s"
            print(f"{script.stem}: {spent}", flush=True)


def run_example(script: Path, folder: Path, videos: tuple[int, int] = (240, 80)) -> str:
    """Run an example in a folder, and return what it prints; its image is output/gallery/NAME.png there.

    The videos that the examples have in common are rendered first, so that each prints the same wherever it is run.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    train, test = map(str, videos)
    prepare = ["moving-digits", "--out", "output/gallery/digits", "--train", train, "--test", test, "--quiet"]
    command = [sys.executable, "-m", "vidssl", "prepare", *prepare]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, str(script)]
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
