"""Render Colorful Moving MNIST; the same as `vidssl prepare colorful-moving-mnist`.

python datasets/prepare_colorful_moving_mnist.py --share digit --mnist /data/mnist --out data/colorful/digit
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "colorful-moving-mnist")
