r"""Write the lists of Kinetics-400, -600 or -700; the same as `vidssl prepare kinetics`.

python datasets/prepare_kinetics.py /data/k400 --train train.csv --test validate.csv --out lists/k400
python datasets/prepare_kinetics.py /data/k400 --train train.csv --test validate.csv \
        --classes mini_kinetics_classes.txt --out lists/k200
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "kinetics")
