r"""Decode every video of a list, and write the list without broken videos: `vidssl check`.

python tools/check_videos.py lists/mine/train.csv --out lists/mine_checked/train --min-frames 16

Exit status: 0 all rows were kept, 1 rows were left out, 2 the check failed.
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("check")
