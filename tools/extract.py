r"""Write the features of a list of videos as a folder: `vidssl extract`.

python tools/extract.py output/demo/data/motion/test.csv --checkpoint output/demo/run/checkpoints/last.pt \
        --out features --clips 10 --crops 3

In parts, which can be started again one by one:

python tools/extract.py kinetics/train.csv --checkpoint last.pt --out features --shard 0/64     # … 63/64
vidssl merge --out features
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("extract")
