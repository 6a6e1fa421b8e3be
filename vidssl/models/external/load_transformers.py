"""Vision networks of transformers: `transformers:ORG/NAME[@REVISION]` of its cache or the Hub, or a folder."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoImageProcessor, AutoModel, AutoVideoProcessor
from transformers.video_processing_utils import BaseVideoProcessor

from vidssl.base.errors import CheckpointError, UntrustedError, first_few
from vidssl.models.external import Called, Encoder, facts_of, preprocessed_by, seconds_of

# Stride in training, at 30 frames per second: VideoMAE (Tong et al., 2022), ViViT (Arnab et al., 2021), and TimeSformer
# (Bertasius et al., 2021), whose networks of more frames have others. Of other networks nothing is stated: 1.
_STRIDES = {"videomae": 4, "vivit": 2, "timesformer": 32, "timesformer 16": 16, "timesformer 96": 4}
_UNUSED = ("mask_token", "num_batches_tracked")  # ends of names of weights that features do not depend on


def load(name: str, trust: bool) -> Encoder:
    """Load a network and its processor. Weights that its files lack are an error, but for those of a pooler."""
    name, _, revision = (name, "", "") if Path(name).exists() else name.partition("@")
    options: dict[str, Any] = {"trust_remote_code": trust, **({"revision": revision} if revision else {})}
    try:
        network, report = AutoModel.from_pretrained(name, output_loading_info=True, **options)
        processor = _processor(name, options)
    except ValueError as error:
        if "trust_remote_code" in str(error) and not trust:
            raise UntrustedError(f"transformers:{name} is code of others: give trust=True to run it") from None
        raise
    missing = sorted(key for key in report["missing_keys"] if not key.endswith(_UNUSED))
    if missing and all(key.startswith("pooler.") for key in missing):
        network.pooler = None  # its classifier reads the tokens
    elif missing:
        lacks = f"{name} lacks {len(missing)} weights of its {type(network).__name__} ({first_few(missing)})"
        raise CheckpointError(f"transformers:{lacks}: load what is there by a function, python:MODULE:FUNCTION")
    config, token = network.config, any(key.endswith("cls_token") for key, _ in network.named_parameters())
    called = partial(Called, network, class_token=token and not getattr(config, "use_mean_pooling", False))
    prepare, facts = partial(_prepare, processor=processor), facts_of(f"transformers {name}")
    parts = (config, getattr(config, "vision_config", None))
    counts = [getattr(part, key, None) for part in parts for key in ("frames_per_clip", "num_frames")]
    if frames := next(filter(None, counts), None):
        kind = config.model_type
        seconds = seconds_of(frames, _STRIDES.get(f"{kind} {frames}", _STRIDES.get(kind, 1)))
        return preprocessed_by(prepare, called(_of_clips), frames=frames, seconds=seconds, **facts)
    if most := getattr(processor, "max_num_patches", None):
        network = called(partial(_of_patches, size=processor.patch_size, most=most))
        return preprocessed_by(prepare, network, images=True, any_shape=True, **facts)
    if config.model_type == "vit_mae":
        network.config.mask_ratio = 0.0
        return preprocessed_by(prepare, called(_of_all_patches), images=True, **facts)
    return preprocessed_by(prepare, called(_of_images), images=True, **facts)


def _processor(name: str, options: dict[str, Any]) -> Any:
    try:
        return AutoVideoProcessor.from_pretrained(name, **options)
    except (OSError, ValueError, ImportError):  # those of images have none, and some of clips one of images
        return AutoImageProcessor.from_pretrained(name, **options)


def _prepare(frames: Tensor, processor: Any) -> Tensor:
    if isinstance(processor, BaseVideoProcessor):
        inputs = processor([frames], return_tensors="pt", do_sample_frames=False)
    else:
        inputs = processor(list(frames), return_tensors="pt")
    views: Tensor
    (views,) = (value for name, value in inputs.items() if name.startswith("pixel_values"))
    if "spatial_shapes" not in inputs:
        return views.reshape(len(frames), 3, *views.shape[-2:])
    rows, columns = inputs["spatial_shapes"][0].tolist()  # the same of all frames; other patches are padding
    size = processor.patch_size
    grid = views[:, : rows * columns].reshape(-1, rows, columns, size, size, 3)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, rows * size, columns * size)


def _of_clips(network: Any, x: Tensor) -> Any:
    method = getattr(network, "get_video_features", getattr(network, "get_vision_features", network))
    return method(x.transpose(1, 2))


def _of_images(network: Any, *x: Tensor) -> Any:
    return getattr(network, "get_image_features", network)(*x)


def _of_all_patches(network: Any, x: Tensor) -> Any:
    """Encode images by ViTMAE, which masks the patches of the largest noise: here none, and their order is kept."""
    patches = network.embeddings.position_embeddings.shape[1] - 1
    return network(x, noise=torch.arange(patches).expand(len(x), -1))


def _of_patches(network: Any, x: Tensor, size: int, most: int) -> Any:
    """Encode images (B, 3, H, W) of any shape by SigLIP 2: their patches (B, most, 3 size²), a mask, and the grid."""
    rows, columns = x.shape[2] // size, x.shape[3] // size
    patches = x.reshape(-1, 3, rows, size, columns, size).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    padded = functional.pad(patches, (0, 0, 0, most - rows * columns))
    mask = torch.arange(most, device=x.device).expand(len(x), -1) < rows * columns
    shapes = torch.tensor([[rows, columns]] * len(x), device=x.device)
    return _of_images(network, padded, mask.int(), shapes)
