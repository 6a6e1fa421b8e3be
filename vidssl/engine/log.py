"""What a run says: JSON lines, TensorBoard, one terminal line."""

import json
import logging
import math
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from vidssl.atomic import replacing
from vidssl.errors import TrainingError
from vidssl.progress import progress

_log = logging.getLogger(__name__)


class RunLog:
    """The log of a run; the main process opens and writes it.

    Args:
        output: Folder of the run.
        step: Step that the run starts from; lines of later steps, of a run that was cut off, are dropped.
        steps: Length of the run.
        clips_per_step: Clips that a step learns from, over all processes.
        strict: Whether a line that cannot be written ends the run.
    """

    def __init__(self, output: Path, step: int, steps: int, clips_per_step: int, strict: bool) -> None:
        self._path, self._step, self._steps = output / "metrics.jsonl", step, steps
        self._clips_per_step, self._strict = clips_per_step, strict
        self._open = ExitStack()

    def open(self) -> None:
        """Drop the lines of later steps, and begin to write.

        Raises:
            TrainingError: The folder cannot be written.
        """
        from torch.utils.tensorboard import SummaryWriter  # the main process alone needs it

        try:
            text = self._path.read_text(errors="replace") if self._path.exists() else ""
            lines = text.splitlines()
            if damaged := sum(_step_of(line) is None for line in lines):
                _log.warning("%s: %d damaged lines are dropped", self._path, damaged)
            with replacing(self._path) as file:
                for line in lines:
                    at = _step_of(line)
                    if at is not None and at <= self._step:
                        file.write(f"{line}\n".encode())
            self._file = self._open.enter_context(open(self._path, "a", buffering=1))
            self._board = SummaryWriter(str(self._path.parent), purge_step=self._step + 1)
        except OSError as error:
            raise self._error(error) from None
        self._open.callback(self._board.close)
        self._bar = progress(
            title="train", unit="step", total=self._steps, initial=self._step, smoothing=0.05
        )
        self._open.callback(self._bar.close)
        self._since, self._steps_since = time.perf_counter(), 0

    def advance(self) -> None:
        """Count a step."""
        self._bar.update()
        self._steps_since += 1

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write the numbers of a training step, with the speed since the last ones."""
        now = time.perf_counter()
        speed = self._clips_per_step * self._steps_since / max(now - self._since, 1e-9)
        self._since, self._steps_since = now, 0
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {speed:.0f} clips/s", refresh=False)
        self.write(step, {**values, "clips_per_second": speed})
        warn_of_collapse(step, values)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write a line of numbers, with the time: seconds since 1970, in UTC."""
        line = {"step": step, "time": round(time.time(), 3), **values}
        try:
            self._file.write(json.dumps(line) + "\n")
            for key, value in values.items():
                self._board.add_scalar(key, value, step)
        except OSError as error:
            if self._strict:
                raise self._error(error) from None
            _log.warning("step %d is not logged: %s", step, self._error(error))

    def close(self) -> None:
        """Finish all files."""
        # Whoever read the terminal may be gone, and a full disk was told of already.
        with suppress(OSError):
            self._open.close()

    def _error(self, error: OSError) -> TrainingError:
        return TrainingError(f"cannot write {self._path}: {error.strerror}; checkpoints are untouched")


def warn_of_collapse(step: int, values: dict[str, float]) -> bool:
    """Warn, and return True, if the keys of different videos have become nearly equal.

    It warns if `key_rank` < min(3, `key_rank_limit` / 4), or `negative_similarity` > 0.95.
    """
    rank, negative = values.get("key_rank"), values.get("negative_similarity")
    limit = values.get("key_rank_limit", math.inf)
    if rank is None or negative is None or (rank >= min(3.0, limit / 4) and negative <= 0.95):
        return False
    _log.warning(
        "step %d: the keys have collapsed: effective rank %.1f of at most %g, mean similarity of negatives %.2f; "
        "try milder views, a lower learning rate, or with sce a higher coefficient",
        step,
        rank,
        limit,
        negative,
    )
    return True


def _step_of(line: str) -> float | None:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None  # a crash cut it off, or somebody else wrote it
