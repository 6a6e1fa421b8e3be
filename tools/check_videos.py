r"""Check every video of a list by decoding it to its end, and write the list of the sound ones.

python tools/check_videos.py lists/mine/train.csv --out lists/mine_checked/train --min-frames 16

Exit status: 0 nothing is wrong, 1 something was found, 2 the check could not be made.
"""

from vidssl.cli import check, guarded

if __name__ == "__main__":
    guarded(check)
