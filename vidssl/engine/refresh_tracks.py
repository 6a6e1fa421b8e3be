"""Tracks for patch pairs: from a folder, or made again and again by the network in training."""

import logging
import re
import shutil
from functools import partial
from pathlib import Path

import torch

from vidssl.base import distributed
from vidssl.data.track_files import check_video_names, tracks_file, tracks_name, write_tracks
from vidssl.data.video_list import VideoList
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.run_config import Run
from vidssl.models.backbones import Backbone
from vidssl.models.checkpoint_files import saved as saved_checkpoints
from vidssl.models.checkpoint_files import step_of
from vidssl.tracking import Tracker, no_tracks, track_list

_log = logging.getLogger(__name__)


class RunTracks:
    """The tracks of each step of a run: all steps until the next refresh use the same files, also when resumed."""

    def __init__(self, run: Run, videos: VideoList) -> None:
        self._run, self._videos = run, videos
        config, sampler = run.tracks, run.data.sampler.name
        used = sampler == "tracked_pair" or getattr(run.objective[1], "patch_weight", 0) > 0
        if config is not None and not used and distributed.is_main():
            _log.warning("sampler %s ignores the tracks: set tracks=null, unless the method uses boxes", sampler)
        if config is not None:
            check_video_names(videos.names, videos.records)
        self._folder = Path(config.folder) if config and config.folder else None
        self._every = None  # steps
        if config and config.refresh:
            self._every = max(1, round(config.refresh * videos.samples_per_epoch / run.batch_size))

    def due(self, step: int) -> bool:
        """Whether the videos must be tracked before the next step, after `step` steps."""
        return self._every is not None and step % self._every == 0 and (step > 0 or self._folder is None)

    def folder(self, step: int) -> Path | None:
        """Return the folder of tracks for the next step, after `step` steps; None if the run has no tracks."""
        if self._every is None or (step < self._every and self._folder is not None):
            return self._folder
        return Path(self._run.output) / "tracks" / f"step-{step // self._every * self._every:08d}"

    def make(self, step: int, network: Backbone, device: torch.device, request: StopRequest) -> dict[str, str]:
        """Track the training videos with the target network; each process tracks a part of them.

        Tracks of an interrupted attempt are kept, as the network is the same. A video that cannot be decoded gets a
        file without tracks: training reports it. Returns the reasons, by `tracks_name`.
        """
        parts = distributed.gather_outcomes(partial(self._track, step, network, device, request))
        left_out = {name: why for part in parts for name, why in part.items()}
        distributed.on_main(partial(self._complete, step, left_out))
        return left_out

    def _track(self, step: int, network: Backbone, device: torch.device, request: StopRequest) -> dict[str, str]:
        data, config, folder = self._run.data, self._run.tracks, self.folder(step)
        assert config is not None and folder is not None
        return track_list(
            Tracker(network, config.tracker, device, data.mean, data.std),
            self._videos,
            data,
            folder,
            {"step": step},
            proposals=folder.parent,  # independent of the network: searched once for all refreshes
            workers=data.workers,
            timeout=data.timeout,
            shard=(distributed.rank(), distributed.world()),
            check=request.check,
        ).left_out

    def _complete(self, step: int, left_out: dict[str, str]) -> None:
        """Write files for videos that cannot be decoded, and delete tracks that no checkpoint needs any more."""
        every, folder = self._every, self.folder(step)
        assert every is not None and folder is not None
        for name, record in zip(self._videos.names, self._videos.records, strict=True):
            label = tracks_name(name, record)
            if label in left_out:
                _log.warning("no tracks: %s: %s", label, left_out[label])
                write_tracks(tracks_file(folder, name, record), no_tracks(), {"step": step})
        oldest = min(map(step_of, saved_checkpoints(Path(self._run.output) / "checkpoints")), default=0)
        for path in folder.parent.glob("step-*"):  # the names of folders sort by step
            known = re.fullmatch(r"step-\d{8}", path.name)
            if known and path.name < f"step-{oldest // every * every:08d}":
                shutil.rmtree(path, ignore_errors=True)
