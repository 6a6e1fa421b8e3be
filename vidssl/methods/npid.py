"""NPID: instance discrimination with a memory bank (Wu et al., 2018), as InterCLR improved it (NPIDv2)."""

from math import log

import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl import losses
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import RngStream
from vidssl.base.schedule import Temperature, constant
from vidssl.base.types import Batch
from vidssl.losses import full_precision, unit
from vidssl.methods.base import METHODS, Encoded, Method
from vidssl.methods.interclr_branch import Inter, InterBranch, MemoryBank
from vidssl.methods.jigsaw_branch import Jigsaw, JigsawBranch
from vidssl.methods.statistics import key_statistics
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, check_batch_norm, mlp


@METHODS.register("npid")
class NPID(Method):
    """Contrast a video with its own row in the memory bank, and with rows of others; with `jigsaw` it is PIRL."""

    class Config(Settings):
        """Settings; defaults are those of NPIDv2 (Xie et al., 2021, supplement A)."""

        projector: Head = Head(layers=2, hidden=2048, out=128, norm="none")  # on the backbone
        negatives: int = Field(default=16384, ge=1)  # K
        bank_momentum: float = Field(default=0.5, gt=0, le=1)  # omega
        temperature: Temperature = constant(0.1)  # tau
        margin: float = 0.0  # m of MarginNCE (InterCLR, Eq. 5), of the cosine; 0 is InfoNCE
        jigsaw: Jigsaw | None = None  # PIRL's branch
        inter: Inter | None = None  # InterCLR's branch

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.projector = mlp(backbone.dim, config.projector)
        out = config.projector.out
        self.bank = MemoryBank(out, config.bank_momentum)
        if config.jigsaw is not None:
            self.branches["jigsaw"] = JigsawBranch(config.jigsaw, backbone.dim, out)
        if config.inter is not None:
            self.branches["inter"] = InterBranch(config.inter, out, config.temperature, self.bank)

    def allocate(self, num_records: int) -> None:
        """Allocate one row for each record."""
        if num_records < 2:
            raise ConfigError(f"npid needs at least 2 videos, to have negatives; the list has {num_records}")
        self.bank.allocate(num_records)
        super().allocate(num_records)

    @property
    def key_network(self) -> nn.Module:
        """The online network."""
        return nn.Sequential(self.backbone, self.projector)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Average the loss over all views (InterCLR, Eq. 1 and 5)."""
        index, views = batch.index, self.shared_views(len(batch.views))
        check_batch_norm(len(index), self.projector)
        queries = {v: unit(self.projector(self.backbone(batch.views[v]))) for v in views}
        key = self.bank.rows[index]
        encoded = Encoded(queries, {-1: key}, self.draw(index))
        scalars = self.compare_with_branches(batch, encoded)
        if self.watched:
            every = torch.cat([*queries.values()]).detach()
            scalars |= key_statistics(every, key.repeat(len(queries), 1), self.bank.rows, key)
            scalars["i_nce"] = log(self.config.negatives + 1) - self.compare(encoded, margin=0.0).detach()
        self.bank.hold(index, unit(torch.stack([*queries.values()]).mean(dim=0)))
        return scalars

    def compare(self, encoded: Encoded, margin: float | None = None) -> Tensor:
        """MarginNCE with negatives of the bank (Eq. 5), the mean over all views; default: the margin of the config."""
        margin = self.config.margin if margin is None else margin
        tau, rows = self.config.temperature.at(self.progress), self.bank.rows
        (key,) = encoded.keys.values()
        with full_precision(rows.device):
            queries, picks = encoded.queries.values(), encoded.negatives
            return torch.stack([losses.margin_nce(q, key, rows, tau, margin, picks) for q in queries]).mean()

    def draw(self, index: Tensor) -> Tensor:
        """Draw the negatives (N, K) of the records `index` (N,): rows of any other records, with replacement."""
        random = self.uniform(len(index), self.config.negatives, RngStream.NPID, 0, index.device)
        picks = (random * (len(self.bank.rows) - 1)).long()
        return picks + (picks >= index.unsqueeze(1))  # the video itself is skipped

    def after_step(self, progress: float) -> None:
        """Write the step's embeddings to the bank, unless InterCLR's branch, which shares it, has written them."""
        super().after_step(progress)
        self.bank.write()
