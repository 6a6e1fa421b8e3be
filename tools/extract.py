r"""Write the features of a list of videos into a folder.

python tools/extract.py --checkpoint output/demo/run/checkpoints/last.pt \
        --list output/demo/data/motion/test.csv --out features --clips 10 --crops 3

In parts, each made once, whatever was killed meanwhile:

python tools/extract.py --checkpoint last.pt --list kinetics/train.csv --out features --shard 0/64     # … 63/64
python tools/extract.py --merge --out features
"""

from vidssl.commands.cli import extract, guarded

if __name__ == "__main__":
    guarded(extract)
