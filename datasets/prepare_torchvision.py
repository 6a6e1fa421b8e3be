"""Write an image set of torchvision as PNG files and lists; the same as `vidssl prepare torchvision`.

python datasets/prepare_torchvision.py CIFAR10 --root /data/torchvision --download --out lists/cifar10
python datasets/prepare_torchvision.py STL10 --root /data/torchvision --out lists/stl10 --images /data/images
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "torchvision")
