r"""Check every video of a list by decoding it to its end, and write the list of the sound ones.

python tools/check_videos.py lists/mine/train.csv --out lists/mine_checked/train --min-frames 16

Exit status: 0 every row was kept, 1 rows were left out, 2 the check could not be made.
"""

from vidssl.commands import main

if __name__ == "__main__":
    main("check")
