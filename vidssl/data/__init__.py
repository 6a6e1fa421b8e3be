"""Lists of videos to batches: video lists, samplers, data set, loader."""

from vidssl.data.clip_samplers import SAMPLERS, ClipSettings
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader, StepSampler, eval_loader
from vidssl.data.to_device import to_device
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import write_lists

__all__ = [
    "SAMPLERS",
    "ClipDataset",
    "ClipSettings",
    "Loader",
    "StepSampler",
    "VideoList",
    "eval_loader",
    "read_list",
    "to_device",
    "write_lists",
]
