r"""Pre-train, finetune, probe or train from scratch: `vidssl train`.

python tools/train_net.py --cfg demo/sce
python tools/train_net.py --cfg small_cpu output=output/mine data.train=lists/mine/train.csv
torchrun --nproc-per-node 8 tools/train_net.py --cfg sce_r3d50_k400
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("train")
