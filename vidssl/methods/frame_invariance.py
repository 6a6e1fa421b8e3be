"""Frame temporal invariance, with and without tracks: Purushwalkam and Gupta, *Demystifying Contrastive SSL* (2020)."""

from pydantic import Field
from torch import Tensor, nn

from vidssl import losses
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature, UnitInterval, constant
from vidssl.base.types import Batch
from vidssl.methods.base import METHODS, Branch, Encoded, Method
from vidssl.methods.momentum_method import KeyViews, MomentumMethod, QueueConfig
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head
from vidssl.models.layer_features import region_maps


class PatchPairs(Branch):
    """Compares regions that were tracked from one frame to the other, like the frames themselves (Algorithm 1)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Weight the loss with that of the patches; log the fraction of videos with a track as `tracked`."""
        assert encoded.patches is not None and batch.boxes is not None  # or `encode_view` has raised
        # Without a track the box is the whole view, and the patch pair equals the frame pair.
        whole = batch.boxes.new_tensor([[0, 0, *view.shape[:-3:-1]] for view in batch.views])
        tracked = (batch.boxes != whole).flatten(1).any(dim=1).float().mean()
        return {"loss": (1 - self.weight) * loss + self.weight * host.compare(encoded.patches), "tracked": tracked}


@METHODS.register("frame_invariance")
class FrameInvariance(MomentumMethod):
    """MoCo v2 whose positives are distant frames of a video, and regions tracked through it (Algorithm 1)."""

    class Config(QueueConfig):
        """Settings; defaults are those of MoCo v2 on images. The sampler picks the frames, `tracks` has the regions."""

        projector: Head = Head(layers=2, hidden=2048, out=128, norm="none")
        momentum: UnitInterval = constant(0.999)
        temperature: Temperature = constant(0.2)
        key_views: KeyViews = (1,)
        patch_weight: float = Field(default=0.0, ge=0, le=1)  # of patch pairs in the loss; the paper: 0.5 with tracks

    config: Config

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if config.patch_weight:
            backbone.check_regions()
            self.branches = nn.ModuleDict({"patches": PatchPairs(config.patch_weight), **self.branches})  # type: ignore[assignment]  # the first

    def encode_view(self, backbone: Backbone, clips: Tensor, boxes: Tensor | None = None) -> list[Tensor]:
        """Compute features of the clip and, with patch pairs, of the region: RoI pooling of layer 3, then layer 4."""
        if not self.config.patch_weight:
            return [backbone(clips)]
        if boxes is None:
            raise ConfigError("patch_weight needs regions: set tracks.folder or tracks.refresh")
        maps = backbone.layer3(clips)
        return [backbone.layer4(x) for x in (maps, region_maps(maps, boxes, clips.shape[-1]))]

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """InfoNCE; the negatives are the keys of frames and of patches in the queue."""
        return losses.info_nce(query, key, self.queue.keys, self.config.temperature.at(self.progress))
