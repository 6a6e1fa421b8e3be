r"""Convert a list of SlowFast, pytorchvideo or mmaction2; the same as `vidssl prepare list`.

python datasets/prepare_list.py k400/train.csv --form slowfast --root /data/k400 --out lists/k400
python datasets/prepare_list.py ucf101_val_split_1_rawframes.txt --form mmaction2_rawframes \
        --root /data/ucf101/rawframes --classes label_map.txt --name test --out lists/ucf101 --fps 25
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "list")
