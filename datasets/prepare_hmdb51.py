"""Write the lists of HMDB51; the same as `vidssl prepare hmdb51`.

python datasets/prepare_hmdb51.py /data/hmdb51 --splits /data/testTrainMulti_7030_splits --out lists/hmdb51
"""

from vidssl.commands.prepare import run_script

if __name__ == "__main__":
    run_script("hmdb51")
