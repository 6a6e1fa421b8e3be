r"""Analyse what a network has learned. The first word says what: `invariance`, `parts`; each has its own --help.

python tools/analyze.py invariance --checkpoint output/demo/run/checkpoints/last.pt \
        --list output/demo/data/motion/test.csv --out output/invariance
python tools/analyze.py invariance --checkpoint random output/demo/run/checkpoints/last.pt \
        --cfg configs/demo/sce.yaml --list output/demo/data/digit/test.csv \
        --boxes output/demo/data/boxes.csv --clips 3 --out output/invariance
python tools/analyze.py parts --checkpoint output/parts/digits/checkpoints/last.pt \
        --list output/parts/data/parts/test.csv --out output/parts/digits/measured
"""

from vidssl.commands import main

if __name__ == "__main__":
    main("analyze")
