r"""Pre-train, finetune, probe or train from scratch: what the config says.

python tools/train_net.py --cfg configs/demo/sce.yaml
python tools/train_net.py --cfg configs/pretrain/sce_small.yaml output=output/mine data.train=lists/mine/train.csv
torchrun --nproc-per-node 8 tools/train_net.py --cfg configs/pretrain/sce_r3d50_k400.yaml
"""

from vidssl.commands import main

if __name__ == "__main__":
    main("train")
