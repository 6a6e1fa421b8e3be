"""List chunks of the videos of a list; the same as `vidssl prepare chunks`.

python datasets/prepare_chunks.py lists/trackingnet/train.csv --out lists/trackingnet_chunks
python datasets/prepare_chunks.py lists/mine/train.csv --out lists/mine_chunks --chunks 4 --frames 60 --short drop
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "chunks")
