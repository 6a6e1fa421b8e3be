r"""Measure how invariant networks are: `vidssl analyze invariance`.

python tools/analyze.py invariance output/demo/data/motion/test.csv \
        --checkpoint output/demo/run/checkpoints/last.pt --out output/invariance
python tools/analyze.py invariance output/demo/data/digit/test.csv \
        --checkpoint random output/demo/run/checkpoints/last.pt --cfg demo/sce \
        --boxes output/demo/data/boxes.csv --clips 3 --out output/invariance
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("analyze")
