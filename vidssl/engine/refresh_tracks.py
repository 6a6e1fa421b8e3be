"""Tracks for patch pairs: from a folder, or made again and again by the network in training."""

import logging
import shutil
from contextlib import suppress
from pathlib import Path

import torch

from vidssl import distributed
from vidssl.data.track_files import tracks_file, tracks_name, write_tracks
from vidssl.data.video_list import VideoList
from vidssl.engine.checkpoint import saved as saved_checkpoints
from vidssl.engine.checkpoint import step_of
from vidssl.engine.config_schema import Run
from vidssl.engine.interrupt import StopRequest
from vidssl.methods.base import Method
from vidssl.tracking import Tracker, no_tracks, track_list

_log = logging.getLogger(__name__)


class RunTracks:
    """The tracks of each step of a run.

    With `tracks.refresh` the target network tracks the training videos every so many epochs, and before the first step
    if no folder is configured. All steps until the next refresh use the same files, so that a resumed run finds them.
    """

    def __init__(self, run: Run, videos: VideoList) -> None:
        self._run, self._videos = run, videos
        config, sampler = run.tracks, run.data.sampler.name
        used = sampler == "tracked_pair" or getattr(run.method, "patch_weight", 0) > 0
        if config is not None and not used and distributed.is_main():
            _log.warning(
                "the run has tracks, but the sampler %s does not use them and the method has no patch_weight above 0: "
                "set tracks=null, unless the method uses their boxes",
                sampler,
            )
        self._given = None if config is None or config.folder is None else Path(config.folder)
        self._every = None  # steps
        if config is not None and config.refresh is not None:
            self._every = max(1, round(config.refresh * len(videos.records) / run.batch_size))

    def due(self, step: int) -> bool:
        """Whether the videos must be tracked before the next step, after `step` steps."""
        return self._every is not None and step % self._every == 0 and (step > 0 or self._given is None)

    def folder(self, step: int) -> Path | None:
        """Return the folder of tracks for the next step, after `step` steps; None if the run has no tracks."""
        if self._every is None or (step < self._every and self._given is not None):
            return self._given
        return Path(self._run.output) / "tracks" / f"step-{step // self._every * self._every:08d}"

    def make(self, step: int, method: Method, device: torch.device, request: StopRequest) -> None:
        """Track the training videos with the target network; each process tracks a part of them.

        Tracks of an interrupted attempt are kept, as the network is the same. A video that cannot be decoded gets a
        file without tracks: training reports it.

        Raises:
            DataError: The tracks cannot be written.
            Interrupted: A signal asked to stop.
            PeerError: Another process failed.
        """
        config, folder, run = self._run.tracks, self.folder(step), self._run
        assert config is not None and folder is not None

        def track() -> dict[str, str]:
            return track_list(
                Tracker(method.target_backbone, config.tracker, device, run.data.mean, run.data.std),
                self._videos,
                run.data,
                folder,
                {"step": step},
                proposals=folder.parent,  # independent of the network: searched once for all refreshes
                workers=run.data.workers,
                timeout=run.data.timeout,
                shard=(distributed.rank(), distributed.world()),
                check=request.check,
            ).left_out

        left_out = {name: why for part in distributed.gather_outcomes(track) for name, why in part.items()}

        def complete() -> None:
            for name, record in zip(self._videos.names, self._videos.records, strict=True):
                label = tracks_name(name, record)
                if label in left_out:
                    _log.warning("no tracks: %s: %s", label, left_out[label])
                    write_tracks(tracks_file(folder, name, record), no_tracks(), {"step": step})
            self._delete_old()

        distributed.on_main(complete)

    def _delete_old(self) -> None:
        """Delete tracks that no checkpoint needs any more."""
        assert self._every is not None
        output = Path(self._run.output)
        oldest = min(map(step_of, saved_checkpoints(output / "checkpoints")), default=0)
        for path in (output / "tracks").glob("step-*"):
            with suppress(ValueError):
                if step_of(path) < oldest // self._every * self._every:
                    shutil.rmtree(path, ignore_errors=True)
