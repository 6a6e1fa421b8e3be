"""NPID: instance discrimination with a memory bank (Wu et al., 2018), as InterCLR improved it (NPIDv2)."""

from math import log

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vidssl import distributed, losses
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.bank import MemoryBank, others
from vidssl.methods.base import METHODS, Method
from vidssl.methods.inter import Inter, InterBranch
from vidssl.methods.jigsaw import Jigsaw, JigsawBranch, whole_views
from vidssl.methods.parts import Temperature, check_batch_norm, full_precision, key_statistics, unit
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, mlp
from vidssl.randomness import generator
from vidssl.schedule import constant
from vidssl.types import Batch

_DRAWS = 3  # the draws of a record in a step, beside those of other parts


@METHODS.register("npid")
class NPID(Method):
    """Contrast a video with what the bank remembers of it, and of others. One view is enough.

    Defaults are those of NPIDv2 (Xie et al., 2021, supplement A). With `jigsaw` it is PIRL.
    """

    class Config(Settings):
        """Settings of NPID."""

        projector: Head = Head(layers=2, hidden=2048, out=128, norm="none")
        negatives: int = Field(default=16384, ge=1)  # K
        bank_momentum: float = Field(default=0.5, gt=0, le=1)  # omega
        temperature: Temperature = constant(0.1)  # tau
        margin: float = 0.0  # m of MarginNCE (InterCLR, Eq. 5), of the cosine; 0 is InfoNCE
        jigsaw: Jigsaw | None = None  # PIRL's branch
        inter: Inter | None = None  # InterCLR's branch

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.config = config
        self.projector = mlp(backbone.dim, config.projector)
        out = config.projector.out
        self.bank = MemoryBank(out, config.bank_momentum)
        self.jigsaw = None if config.jigsaw is None else JigsawBranch(config.jigsaw, backbone.dim, out)
        self.inter = None if config.inter is None else InterBranch(config.inter, out, config.temperature)
        self._seed = torch.initial_seed()  # that of the run, when it is built

    def allocate(self, num_records: int) -> None:
        """Make room for one row of each record."""
        if num_records < 2:
            raise ConfigError("npid compares a video with others: the list has only one")
        self.bank.allocate(num_records)
        if self.inter is not None:
            self.inter.clusters.allocate(num_records)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Average the loss over all views (InterCLR, Eq. 1 and 5)."""
        index, bank, step = batch.index, self.bank, self.step
        check_batch_norm(self.projector, len(index))
        whole = whole_views(self.config.jigsaw, len(batch.views))
        queries = [unit(self.projector(self.backbone(batch.views[n]))) for n in whole]
        puzzles = []
        if self.jigsaw is not None:
            own = self.jigsaw.config.view
            cut = whole if own is None else [own]
            puzzles = [unit(self.jigsaw(self.backbone, batch.views[n], index, step, n)) for n in cut]
        with full_precision(index.device):
            picks = self._picks(index)
            margin = self.config.margin
            loss = self._compare(queries, index, picks, margin)
            if self.config.jigsaw is not None:
                share = self.config.jigsaw.weight
                loss = (1 - share) * loss + share * self._compare(puzzles, index, picks, margin)
            scalars = {"loss": loss}
            if self.inter is not None:
                scalars = self.inter.mix(loss, queries, index, bank, step, self.progress)
            if self.watched:
                key, seen = bank.rows[index], [query.detach() for query in queries]
                every_query, every_key, one_each = (
                    distributed.gather(rows) for rows in (torch.cat(seen), key.repeat(len(queries), 1), key)
                )
                scalars.update(key_statistics(every_query, every_key, bank.rows, one_each))
                scalars["i_nce"] = log(self.config.negatives + 1) - self._compare(seen, index, picks, 0.0)
        bank.hold(index, unit(torch.stack(queries).mean(dim=0)))
        return scalars

    def _compare(self, queries: list[Tensor], index: Tensor, picks: Tensor, margin: float) -> Tensor:
        tau, rows = self.config.temperature.at(self.progress), self.bank.rows
        compared = [losses.margin_nce(query, rows[index], rows, tau, margin, picks) for query in queries]
        return torch.stack(compared).mean()

    def _picks(self, index: Tensor) -> Tensor:
        """Draw negatives (N, K) for each record: any others."""
        count, records = self.config.negatives, len(self.bank.rows)
        sources = [generator(self._seed, self.step, record, 0, _DRAWS) for record in index.tolist()]
        drawn = [
            others([record], records, count, source)
            for record, source in zip(index.tolist(), sources, strict=True)
        ]
        return torch.from_numpy(np.stack(drawn)).to(index.device)

    def after_step(self, progress: float) -> None:
        """Write the step's embeddings into the bank, and bring the clusters up to date."""
        super().after_step(progress)
        if self.inter is None:
            self.bank.write()
        else:
            self.inter.after_step(self.bank, self.step)
