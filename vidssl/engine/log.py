"""What a run says: JSON lines, TensorBoard, one terminal line."""

import json
import logging
import time
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from vidssl.progress import progress

_log = logging.getLogger(__name__)


class RunLog:
    """The log of the main process.

    Args:
        output: Folder of the run.
        step: Step that the run starts from; lines of later steps, of a run that was cut off, are dropped.
        steps: Length of the run.
        clips_per_step: Clips that a step learns from, over all processes.
    """

    def __init__(self, output: Path, step: int, steps: int, clips_per_step: int) -> None:
        self._path = output / "metrics.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        self._path.write_text("".join(f"{line}\n" for line in kept))
        self._file = open(self._path, "a", buffering=1)
        self._board = SummaryWriter(str(output), purge_step=step + 1)
        self._bar = progress(title="train", unit="step", total=steps, initial=step, smoothing=0.05)
        self._clips_per_step = clips_per_step
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
        """Write a line of numbers."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        for key, value in values.items():
            self._board.add_scalar(key, value, step)

    def close(self) -> None:
        """Finish all files."""
        self._bar.close()
        self._file.close()
        self._board.close()


def warn_of_collapse(step: int, values: dict[str, float]) -> bool:
    """Say so where the keys of a query/key method no longer tell videos apart."""
    rank, negative = values.get("key_rank"), values.get("negative_similarity")
    if rank is None or negative is None or (rank >= 3.0 and negative <= 0.95):
        return False
    _log.warning(
        "step %d: the keys have collapsed: effective rank %.1f, mean similarity of negatives %.2f; "
        "try milder views, a higher coefficient, or a lower learning rate",
        step,
        rank,
        negative,
    )
    return True


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that a crash cut off
