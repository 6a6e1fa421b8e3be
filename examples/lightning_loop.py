"""SimCLR on vidssl's clips in a loop of Lightning: python examples/lightning_loop.py VIDEOS OUT.safetensors EPOCHS."""

import sys

import lightning
import torch
from torch import Tensor, nn

import vidssl
from vidssl.data import SAMPLERS, ClipDataset
from vidssl.losses import nt_xent, unit
from vidssl.transforms import RECIPES


class Clips(torch.utils.data.Dataset[list[Tensor]]):
    def __init__(self, videos: str, size: int = 64) -> None:
        sampler = SAMPLERS["random"](SAMPLERS["random"].Config(frames=4, seconds=0.5))
        recipe = RECIPES["strong"](RECIPES["strong"].Config(size=size))
        self.clips, self.epoch = ClipDataset(vidssl.read_input(videos), sampler, [recipe, recipe]), 0

    def __getitem__(self, index: int) -> list[Tensor]:  # two views, float (3, T, S, S)
        views = self.clips[self.epoch, index].views  # a function of the epoch, which is set below
        return [torch.from_numpy(view.swapaxes(0, 1) / 255).float().sub(0.45).div(0.225) for view in views]

    def __len__(self) -> int:
        return len(self.clips)


class SimCLR(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = vidssl.build_backbone("resnet3d18", width=16, zero_init=False)  # that of small_video/simclr
        wide = [nn.Linear(self.backbone.dim, 256), nn.BatchNorm1d(256), nn.ReLU()]
        self.projector = nn.Sequential(*wide, nn.Linear(256, 128))

    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.dataset.epoch = self.current_epoch

    def training_step(self, views: list[Tensor], _: int) -> Tensor:
        embedding = unit(self.projector(self.backbone(torch.cat(views))))  # (2 B, 128)
        loss = nt_xent(embedding, torch.arange(len(views[0])).repeat(2), temperature=0.1)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)


if __name__ == "__main__":
    model, epochs = SimCLR(), int(sys.argv[3])
    loader = torch.utils.data.DataLoader(Clips(sys.argv[1]), batch_size=32, shuffle=True, num_workers=2, drop_last=True)
    lightning.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False).fit(model, loader)
    vidssl.save_backbone(model.backbone, sys.argv[2], cfg="small_video/simclr")
