r"""Copy the videos of a list into a small format that decodes fast: `vidssl shrink`.

python tools/shrink_videos.py lists/mine/train.csv --out /data/actions_128 --short-side 128

Every list of these videos then works with `--root /data/actions_128` or `data.root=/data/actions_128`.
Exit status: 0 all videos were copied, 1 some cannot be decoded and were left out, 2 the copies could not be written.
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("shrink")
