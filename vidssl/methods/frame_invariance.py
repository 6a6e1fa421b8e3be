"""Frame temporal invariance, with and without tracks: Purushwalkam and Gupta, *Demystifying Contrastive SSL* (2020)."""

from pydantic import Field
from torch import Tensor

from vidssl import losses
from vidssl.errors import ConfigError
from vidssl.methods.base import METHODS, Encoded
from vidssl.methods.momentum import KeyViews, MomentumMethod, QueueConfig
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head
from vidssl.models.regions import region_maps
from vidssl.schedule import Temperature, UnitInterval, constant
from vidssl.types import Batch


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

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """With patch pairs also log the fraction of videos with a track, as `tracked`."""
        scalars = super().forward(batch)
        if batch.boxes is not None and self.config.patch_weight:
            # Without a track the box is the whole view, and the patch pair equals the frame pair.
            whole = batch.boxes.new_tensor([[0, 0, *view.shape[:-3:-1]] for view in batch.views])
            scalars["tracked"] = (batch.boxes != whole).flatten(1).any(dim=1).float().mean()
        return scalars

    def compare(self, encoded: Encoded) -> Tensor:
        """Weight the loss of frames with that of the regions tracked from one to the other (Algorithm 1)."""
        loss, weight = super().compare(encoded), self.config.patch_weight
        for patches in encoded.patches:
            loss = (1 - weight) * loss + weight * super().compare(patches)
        return loss

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
