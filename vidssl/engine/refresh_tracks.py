"""The tracks that a run draws its patch pairs from: made beforehand, or anew by the network that is being trained."""

import logging
import shutil
from contextlib import suppress
from pathlib import Path

import torch

from vidssl import distributed
from vidssl.data.tracks import tracks_file, tracks_name, write_tracks
from vidssl.data.video_list import VideoList
from vidssl.engine.checkpoint import saved as saved_checkpoints
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.run_config import Run
from vidssl.methods.base import Method
from vidssl.tracking import no_tracks, track_list

_log = logging.getLogger(__name__)


class RunTracks:
    """Where the tracks of each step are, and how they get there.

    With `tracks.refresh` the target network tracks the training videos before the first step, unless a folder was
    given, and every so many epochs. All steps up to the next time draw from the same files, so that a run that goes on
    from a checkpoint finds what it had.
    """

    def __init__(self, run: Run, videos: VideoList) -> None:
        self._run, self._videos = run, videos
        told, sampler = run.tracks, run.data.sampler.name
        used = sampler == "tracked_pair" or getattr(run.method, "patch_weight", 0) > 0
        if told is not None and not used and distributed.is_main():
            _log.warning(
                "the run has tracks, the sampler %s draws without them, and the method has no patch_weight above 0: "
                "tracks=null unless it uses their boxes in a way of its own",
                sampler,
            )
        self._given = None if told is None or told.folder is None else Path(told.folder)
        self._every = None
        if told is not None and told.refresh is not None:
            self._every = max(1, round(told.refresh * len(videos.records) / run.batch_size))

    def due(self, step: int) -> bool:
        """Whether tracks are made anew before the step that follows `step` others."""
        return self._every is not None and step % self._every == 0 and (step > 0 or self._given is None)

    def folder(self, step: int) -> Path | None:
        """Where the tracks are that the step after `step` others draws from; None: the run has none."""
        if self._every is None or (step < self._every and self._given is not None):
            return self._given
        return Path(self._run.output) / "tracks" / f"step-{step // self._every * self._every:08d}"

    def make(self, step: int, method: Method, device: torch.device, request: StopRequest) -> None:
        """Track the training videos with the method's target network; each process takes its share of them.

        What is there of an interrupted attempt is kept: the network is the same. A video that cannot be read gets a
        file without tracks: training meets it by itself.

        Raises:
            DataError: Nothing can be written.
            Interrupted: A signal asked to stop.
            PeerError: Another process has an error.
        """
        told, folder, run = self._run.tracks, self.folder(step), self._run
        assert told is not None and folder is not None  # it is due

        def work() -> dict[str, str]:
            return track_list(
                method.target_backbone,
                self._videos,
                folder,
                told.tracker,
                device,
                run.data.mean,
                run.data.std,
                {"step": step},
                proposals=folder.parent,  # they do not depend on the network: one search for all times
                reading=run.data,
                workers=run.data.workers,
                timeout=run.data.timeout,
                shard=(distributed.rank(), distributed.world()),
                check=request.check,
            ).left_out

        left_out = {name: why for part in distributed.gather_outcomes(work) for name, why in part.items()}

        def complete() -> None:
            for name, record in zip(self._videos.names, self._videos.records, strict=True):
                label = tracks_name(name, record)
                if label in left_out:
                    _log.warning("no tracks: %s: %s", label, left_out[label])
                    write_tracks(tracks_file(folder, name, record), no_tracks(), {"step": step})
            self._forget()

        distributed.on_main(complete)

    def _forget(self) -> None:
        """Remove tracks that no checkpoint needs any more."""
        assert self._every is not None
        folder = Path(self._run.output) / "checkpoints"
        steps = [int(path.stem.removeprefix("step-")) for path in saved_checkpoints(folder)]
        needed = min(steps, default=0) // self._every * self._every
        for path in (Path(self._run.output) / "tracks").glob("step-*"):
            with suppress(ValueError):
                if int(path.name.removeprefix("step-")) < needed:
                    shutil.rmtree(path, ignore_errors=True)
