"""Write lists of the boxes and outlines of COCO; the same as `vidssl prepare coco`.

python datasets/prepare_coco.py /data/coco --out lists/coco
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "coco")
