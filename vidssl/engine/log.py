"""The log of a run: JSON lines, TensorBoard and a progress bar."""

import json
import logging
import math
import time
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from vidssl.base.atomic import replacing, without_nan
from vidssl.base.errors import TrainingError
from vidssl.base.progress import progress
from vidssl.base.safe_parse import parse_json

_log = logging.getLogger(__name__)
_ESTIMATED_AT, _ESTIMATED_AFTER = 10, 10.0  # steps or seconds after which the time that is left is logged
_SURE_AT, _WAITS = 20, 0.3  # steps after which the loader is named, if so much of the time was waiting for it


class RunLog:
    """Writes `metrics.jsonl` and TensorBoard events, on the main process only, from a step of the run's `steps` on.

    Lines of later steps are dropped. With `strict` a line that cannot be written ends the run. `faster` says what a
    user can do where the run waits for data.
    """

    def __init__(
        self, output: Path, step: int, steps: int, clips_per_step: int, strict: bool, faster: str = ""
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and needed by the main process only

        self._path, self._clips_per_step, self._strict = output / "metrics.jsonl", clips_per_step, strict
        self._open = ExitStack()
        try:
            text = self._path.read_text(errors="replace") if self._path.exists() else ""
            damaged = 0
            with replacing(self._path) as file:
                for line in text.splitlines():
                    try:
                        if parse_json(line)["step"] <= step:
                            file.write(f"{line}\n".encode())
                    except (ValueError, KeyError, TypeError):  # a crash cut it off
                        damaged += 1
            if damaged:
                _log.warning("%s: damaged lines are dropped: %d", self._path, damaged)
            self._file = self._open.enter_context(open(self._path, "a", buffering=1))
            self._board = SummaryWriter(str(self._path.parent), purge_step=step + 1)
        except OSError as error:
            raise self._error(error) from None
        self._open.callback(self._board.close)
        self._bar = progress(title="train", unit="step", total=steps, initial=step, smoothing=0.05)
        self._open.callback(self._bar.close)
        self._since, self._steps_since = time.perf_counter(), 0
        self._remaining, self._steps_done, self._started = steps - step, 0, self._since
        self._waited, self._faster, self._is_estimated = 0.0, faster, False

    def advance(self, waited: float = 0.0) -> None:
        """Advance the progress bar by a step, which has `waited` for data, in seconds."""
        self._bar.update()
        self._steps_since += 1
        self._steps_done += 1
        if self._steps_done == 1:
            self._started = time.perf_counter()  # the first step waits for the workers to start
            return
        self._waited += waited
        elapsed, left = time.perf_counter() - self._started, self._remaining - self._steps_done
        if left and not self._is_estimated and (self._steps_done == _ESTIMATED_AT or elapsed > _ESTIMATED_AFTER):
            self._is_estimated = True
            seconds = elapsed / (self._steps_done - 1)
            to_go = timedelta(seconds=round(seconds * left))
            text = f"{self._steps_done} steps are done, {1 / seconds:.2g} a second: about {to_go} to go"
            _log.info(f"{text}, to {datetime.now() + to_go:%Y-%m-%d %H:%M}")
        if self._faster and self._steps_done >= _SURE_AT and self._waited > _WAITS * elapsed:
            _log.info("waiting for data %.0f %% of the time: use %s", 100 * self._waited / elapsed, self._faster)
            self._faster = ""

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write the scalars of a training step, with the speed since the last ones."""
        now = time.perf_counter()
        speed = self._clips_per_step * self._steps_since / max(now - self._since, 1e-9)
        self._since, self._steps_since = now, 0
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {speed:.0f} clips/s", refresh=False)
        self.write(step, {**values, "clips_per_second": speed})
        warn_of_collapse(step, values)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write a line of scalars and texts, with the time in seconds since 1970 (UTC)."""
        try:
            line, _ = without_nan({"step": step, "time": round(time.time(), 3), **values})
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            for key, value in values.items():
                if not isinstance(value, str):
                    self._board.add_scalar(key, value, step)
        except OSError as error:
            if self._strict:
                raise self._error(error) from None
            _log.warning("step %d is not logged: %s", step, self._error(error))

    def close(self) -> None:
        """Close all files."""
        with suppress(OSError):  # stderr may be closed, and a full disk has been reported already
            self._open.close()

    def _error(self, error: OSError) -> TrainingError:
        return TrainingError(f"cannot write {self._path}: {error.strerror}; checkpoints are untouched")


def warn_of_collapse(step: int, values: dict[str, float]) -> None:
    """Warn if the keys of different videos have become nearly equal, in one stream or another."""
    streams = [name.removesuffix("key_rank") for name in values if name.rpartition(".")[2] == "key_rank"]
    for stream in streams:  # "rgb."; "" without streams
        rank, negative = values[f"{stream}key_rank"], values.get(f"{stream}negative_similarity")
        limit = values.get(f"{stream}key_rank_limit", math.inf)
        if negative is None or (rank >= min(3.0, limit / 4) and negative <= 0.95):
            continue
        keys = f"keys of {stream[:-1]}" if stream else "keys"
        _log.warning(
            f"step {step}: the {keys} have collapsed: effective rank {rank:.1f} of at most {limit:g}, mean similarity "
            f"of negatives {negative:.2f}; try weaker augmentation, a lower learning rate, or with sce a higher "
            "coefficient"
        )
