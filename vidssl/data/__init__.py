"""Videos on disk to batches on the device: lists, decoding, samplers, views, loader."""

from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import StepSampler, eval_loader, to_device, train_loader
from vidssl.data.records import VideoList, read_list, write_lists
from vidssl.data.samplers import SAMPLERS, ClipSettings
from vidssl.data.video import Video, open_video

__all__ = [
    "SAMPLERS",
    "ClipDataset",
    "ClipSettings",
    "StepSampler",
    "Video",
    "VideoList",
    "eval_loader",
    "open_video",
    "read_list",
    "to_device",
    "train_loader",
    "write_lists",
]
