"""Render the moving digits; the same as `vidssl prepare moving-digits`.

python datasets/make_moving_digits.py --out data/moving_digits --size 32
python datasets/make_moving_digits.py --out data/moving_mnist --mnist /data/mnist
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "moving-digits")
