r"""Track the regions of videos, `DIR/tracks/<name>.npz` each, for training on patch pairs: `vidssl track`.

python tools/track_regions.py lists/mine/train.csv --checkpoint output/mine --stream rgb \
        --out output/tracks --tracker size=128 search.short_side=96 --overlay 8

The same command resumes an interrupted run. Parts of a list can run in parallel: `--shard 0/4` … `--shard 3/4`.
Exit status: 0 all videos were tracked, 1 some cannot be read and were left out (0 with --allow-missing), 2 it failed.
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("track")
