r"""Write the lists of Something-Something v2; the same as `vidssl prepare ssv2`.

python datasets/prepare_ssv2.py /data/ssv2/videos --train something-something-v2-train.json \
        --test something-something-v2-validation.json --labels something-something-v2-labels.json --out lists/ssv2
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "ssv2")
