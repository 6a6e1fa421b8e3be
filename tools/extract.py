r"""Write the features of a list of videos to an npz file.

python tools/extract.py --checkpoint output/demo/run/checkpoints/last.pt \
        --list output/demo/data/motion/test.csv --out features.npz --clips 10 --crops 3
"""

from vidssl.cli import extract, guarded

if __name__ == "__main__":
    guarded(extract)
