"""Render Colorful Moving MNIST; the same as `vidssl prepare colorful-moving-mnist`.

python datasets/prepare_colorful_moving_mnist.py --share digit --mnist /data/mnist --out data/colorful/digit
"""

from vidssl.commands.prepare import run_script

if __name__ == "__main__":
    run_script("colorful-moving-mnist")
