r"""Search videos by their features: R@k, kNN accuracy, and a page with the results: `vidssl retrieval`.

python tools/retrieval.py --checkpoint output/demo/run/checkpoints/last.pt \
        --gallery output/demo/data/motion/train.csv --query output/demo/data/motion/test.csv --out output/retrieval
python tools/retrieval.py --checkpoint random --cfg demo/sce --gallery LIST --query LIST --out DIR

An index keeps the features of the gallery; later searches, also for one video, need only the index:

python tools/retrieval.py --checkpoint last.pt --gallery LIST --index gallery --query LIST --out DIR
python tools/retrieval.py --checkpoint last.pt --index gallery --query new.mp4 --out DIR
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("retrieval")
