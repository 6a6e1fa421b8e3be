r"""Copy the videos of a list once into a form made for training: small, and quick to decode at any frame.

python tools/shrink_videos.py lists/mine/train.csv --out /data/actions_128 --short-side 128

Every list of these videos then works with `--root /data/actions_128` or `data.root=/data/actions_128`.
Exit status: 0 all is copied, 1 something cannot be decoded and was left out, 2 the copies could not be made.
"""

from vidssl.commands import main

if __name__ == "__main__":
    main("shrink")
