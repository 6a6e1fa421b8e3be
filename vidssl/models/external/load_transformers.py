"""Vision networks of transformers: `transformers:ORG/NAME[@REVISION]` of its cache or the Hub, or a folder."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoVideoProcessor

from vidssl.errors import UntrustedError
from vidssl.models.external import Encoder, as_frames, pooled
from vidssl.models.external.facts import facts_of
from vidssl.types import Frames

_RATE = 30.0  # frames a second that the number of frames of a clip and the stride count in, where nothing is stated


def load(name: str, trust: bool = False) -> Encoder:
    """Load a network and its processor; see `vidssl.models.external`."""
    name, _, revision = (name, "", "") if Path(name).exists() else name.partition("@")
    options: dict[str, Any] = {"trust_remote_code": trust, **({"revision": revision} if revision else {})}
    try:
        config = AutoConfig.from_pretrained(name, **options)
        network = AutoModel.from_pretrained(name, **options).eval()
        processor = _processor(name, options)
    except ValueError as error:
        if "trust_remote_code" in str(error) and not trust:
            raise UntrustedError(f"transformers:{name} comes with code: give --trust if you know its author") from None
        raise
    frames = next((getattr(config, key) for key in ("frames_per_clip", "num_frames") if hasattr(config, key)), None)
    vision = getattr(config, "vision_config", config)
    frames = frames or getattr(vision, "num_frames", None)
    any_shape = getattr(processor, "max_num_patches", None) is not None
    if hasattr(processor, "val_transforms"):  # a network of timm
        from vidssl.models.external.load_timm import crop_of

        crop, scale, stated = crop_of(processor.val_transforms), 1.0, processor.data_config
        mean, std = stated["mean"], stated["std"]
    else:
        crop = partial(_whole_patches if any_shape else _crop, processor=processor)
        scale = 255 * processor.rescale_factor if processor.do_rescale else 255.0
        mean = processor.image_mean if processor.do_normalize else (0.0,)
        std = processor.image_std if processor.do_normalize else (1.0,)
    cut = crop(np.zeros((2, 3, 48, 64), np.uint8))
    stride = _STRIDES.get(config.model_type, 1)
    return Encoder(
        network=_Patches(network, processor) if any_shape else _Features(network, frames is not None),
        crop=crop,
        size=min(cut.shape[2:]),
        any_shape=any_shape,
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        images=frames is None,
        frames=frames or 8,
        seconds="whole" if frames is None else frames * stride / _RATE,
        version=f"transformers {transformers.__version__}",
        facts=facts_of("transformers", name),
    )


# Stride of the frames in training: VideoMAE (Tong et al., 2022), TimeSformer (Bertasius et al., 2021), ViViT (2021).
_STRIDES = {"videomae": 4, "timesformer": 32, "vivit": 2}


def _processor(name: str, options: dict[str, Any]) -> Any:
    videos: Any = AutoVideoProcessor
    images: Any = AutoImageProcessor
    try:
        return videos.from_pretrained(name, **options)
    except (OSError, ValueError, ImportError):
        return images.from_pretrained(name, **options)


def _crop(frames: Frames, processor: Any) -> Frames:
    """Apply the spatial part: what is left is the arithmetic of each pixel."""
    plain: dict[str, Any] = {"do_rescale": False, "do_normalize": False, "return_tensors": "pt"}
    tensor = as_frames(frames)
    if hasattr(processor, "video_processor_type") or (
        "Video" in type(processor).__name__ and hasattr(processor, "sample_frames")
    ):
        made = processor([tensor], do_sample_frames=False, **plain)
    else:
        made = processor(list(tensor), **plain)
    (views,) = (value for name, value in made.items() if name.startswith("pixel_values"))
    crop: Frames = torch.as_tensor(views).reshape(len(frames), 3, *views.shape[-2:]).to(torch.uint8).numpy()
    return crop


class _Features(nn.Module):
    """The features of clips or images, by the method of the network for that, else its pooled output."""

    def __init__(self, network: Any, clips: bool) -> None:
        super().__init__()
        self.network, self.clips = network, clips
        names = ("get_video_features", "get_vision_features") if clips else ("get_image_features",)
        self.method = next((getattr(network, name) for name in names if hasattr(network, name)), network)

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, S, S) or images (B, 3, S, S)."""
        return pooled(self.method(x.transpose(1, 2) if self.clips else x))


class _Patches(nn.Module):
    """SigLIP 2 for images of any shape: of their patches, with a mask."""

    def __init__(self, network: Any, processor: Any) -> None:
        super().__init__()
        self.network, self.size, self.most = network, processor.patch_size, processor.max_num_patches

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (B, 3, H, W), whose sides are multiples of the patch."""
        from transformers.models.siglip2.image_processing_siglip2 import convert_image_to_patches, pad_along_first_dim

        patches = [pad_along_first_dim(convert_image_to_patches(image, self.size), self.most) for image in x]
        padded, masks = zip(*patches, strict=True)
        shapes = torch.tensor([[side // self.size for side in x.shape[-2:]]] * len(x))
        method = getattr(self.network, "get_image_features", self.network)
        mask = torch.stack(masks).to(x.device)
        return pooled(
            method(pixel_values=torch.stack(padded), pixel_attention_mask=mask, spatial_shapes=shapes.to(x.device))
        )


def _whole_patches(frames: Frames, processor: Any) -> Frames:
    """Resize as the processor does: the shape stays nearly the same, and the sides are multiples of the patch."""
    from transformers.image_utils import SizeDict
    from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

    height, width = get_image_size_for_max_num_patches(
        image_height=frames.shape[2],
        image_width=frames.shape[3],
        patch_size=processor.patch_size,
        max_num_patches=processor.max_num_patches,
    )
    size = SizeDict(height=height, width=width)
    resized: Frames = processor.resize(image=as_frames(frames), size=size, resample=processor.resample).numpy()
    return resized
