"""Write the lists of HMDB51; the same as `vidssl prepare hmdb51`.

python datasets/prepare_hmdb51.py /data/hmdb51 --splits /data/testTrainMulti_7030_splits --out lists/hmdb51
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "hmdb51")
