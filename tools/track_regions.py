r"""Track the regions of the videos of a list: `DIR/tracks/<name>.npz` for each, from which patch pairs are drawn.

python tools/track_regions.py output/demo/data/motion/train.csv --checkpoint output/demo/run/checkpoints/last.pt \
        --out output/tracks --tracker size=128 search.short_side=96 --overlay 8

A run that was stopped goes on where it was. Parts of a list can be tracked apart: `--shard 0/4` … `--shard 3/4`.
Exit status: 0 all is tracked, 1 some videos cannot be read and were left out (0 with --allow-missing), 2 it could not
be done.
"""

from vidssl.commands import main

if __name__ == "__main__":
    main("track")
