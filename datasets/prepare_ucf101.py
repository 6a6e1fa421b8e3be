"""Write the lists of UCF101; the same as `vidssl prepare ucf101`.

python datasets/prepare_ucf101.py /data/UCF-101 --splits /data/ucfTrainTestlist --out lists/ucf101
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "ucf101")
