"""Frame temporal invariance, with and without tracks: Purushwalkam and Gupta, *Demystifying Contrastive SSL* (2020)."""

from pydantic import Field
from torch import Tensor

from vidssl import losses
from vidssl.errors import ConfigError
from vidssl.methods.base import METHODS
from vidssl.methods.momentum import KeyViews, MomentumMethod, Queued
from vidssl.methods.parts import Temperature, UnitInterval
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head
from vidssl.models.regions import region_maps
from vidssl.schedule import constant
from vidssl.types import Batch


@METHODS.register("frame_invariance")
class FrameInvariance(MomentumMethod):
    """MoCo v2 whose positives are frames of a video far apart, and regions that were tracked from one to the other.

    The far frames come from the sampler (`pair`, `tracked_pair`), the regions from the run's `tracks`. (Algorithm 1.)
    """

    class Config(MomentumMethod.Config, Queued):
        """Settings of the method: those of MoCo v2 on images."""

        projector: Head = Head(layers=2, hidden=2048, out=128, norm="none")
        momentum: UnitInterval = constant(0.999)
        temperature: Temperature = constant(0.2)
        key_views: KeyViews = (1,)
        # Of the patch pairs in the loss, the frame pairs have the rest: 0.5 in the paper with tracks, 0 without.
        patch_weight: float = Field(default=0.0, ge=0, le=1)

    config: Config

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        patches = config.patch_weight
        if patches:
            backbone.check_regions()
        self.weights = (1 - patches, patches) if patches else (1.0,)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compare frames, and patches where they have a weight; `tracked`: the share of videos with a patch pair."""
        scalars = super().forward(batch)
        if batch.boxes is not None and len(self.weights) > 1:
            whole = batch.boxes.new_tensor([[0, 0, *view.shape[:-3:-1]] for view in batch.views])
            scalars["tracked"] = (batch.boxes != whole).flatten(1).any(dim=1).float().mean()
        return scalars

    def look(self, backbone: Backbone, clips: Tensor, boxes: Tensor | None = None) -> list[Tensor]:
        """See the whole view, and the region: RoI pooling of layer 3, then layer 4 for both."""
        if len(self.weights) == 1:
            return [backbone(clips)]
        if boxes is None:
            raise ConfigError("patch_weight needs regions: give the run tracks.folder or tracks.refresh")
        maps = backbone.layer3(clips)
        return [backbone.layer4(x) for x in (maps, region_maps(maps, boxes, clips.shape[-1]))]

    def pair_loss(self, query: Tensor, key: Tensor) -> Tensor:
        """InfoNCE with the queue, which holds the keys of frames and of patches, as negatives."""
        return losses.info_nce(query, key, self.queue.keys, self.config.temperature.at(self.progress))
