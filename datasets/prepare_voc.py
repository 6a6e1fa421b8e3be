"""Write lists of the boxes of Pascal VOC; the same as `vidssl prepare voc`.

python datasets/prepare_voc.py /data/VOCdevkit --out lists/voc
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "voc")
