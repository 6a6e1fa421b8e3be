r"""Retrieve videos by their features: R@k, kNN accuracy, and a page to look at.

python tools/retrieval.py --checkpoint output/demo/run/checkpoints/last.pt \
        --gallery output/demo/data/motion/train.csv --query output/demo/data/motion/test.csv \
        --out output/retrieval
python tools/retrieval.py --checkpoint random --cfg configs/demo/sce.yaml --gallery LIST --query LIST --out DIR

With the features of the gallery in a folder, which is created once; then with one video, and without the list:

python tools/retrieval.py --checkpoint last.pt --gallery LIST --index gallery --query LIST --out DIR
python tools/retrieval.py --checkpoint last.pt --index gallery --query new.mp4 --out DIR
"""

from vidssl.commands.cli import guarded, retrieval

if __name__ == "__main__":
    guarded(retrieval)
