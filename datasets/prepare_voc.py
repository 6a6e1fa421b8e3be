"""Write lists of the boxes of Pascal VOC; the same as `vidssl prepare voc`.

python datasets/prepare_voc.py /data/VOCdevkit --out lists/voc
"""

from vidssl.commands.prepare import run_script

if __name__ == "__main__":
    run_script("voc")
