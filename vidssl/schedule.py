"""Values that change over a run: learning rate, momentum of the target, temperatures, coefficients."""

from typing import Annotated, Any, Literal

from fvcore.common.param_scheduler import CosineParamScheduler, LinearParamScheduler
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from vidssl.config import Settings


class Schedule(Settings):
    """A value from `start` to `end` over a run; a single number in a config stays what it is.

    `warmup` is the fraction of the run, in [0, 1), in which the value first climbs linearly from `warmup_start`:
    35 of 200 epochs are 0.175. By default it ends at `start`, and the shapes `linear` and `cosine` cover the rest of
    the run. With `after_warmup: false` they cover the whole run, and the warm-up climbs to the value that they have
    where it ends: the learning rate of SlowFast's code (`COSINE_AFTER_WARMUP: False`). With the shape `steps` the value
    is multiplied by an equal factor at each of `milestones`, fractions of the whole run: from 1 to 0.04 at 0.6 and 0.8
    is a fifth each time.
    """

    start: float
    end: float
    shape: Literal["constant", "linear", "cosine", "steps"] = "cosine"
    warmup: float = Field(default=0.0, ge=0.0, lt=1.0)
    warmup_start: float = 0.0
    after_warmup: bool = True  # of the shapes linear and cosine
    # Of the shape `steps`. Not strict: what a before-validator saw is no longer JSON, in which lists are tuples.
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _constant_is_constant(self) -> "Schedule":
        if self.shape == "constant" and self.start != self.end:
            raise ValueError(f"a constant goes from {self.start} to {self.end}: choose linear or cosine")
        return self

    @model_validator(mode="after")
    def _warmup_has_a_length(self) -> "Schedule":
        if not self.warmup and (self.warmup_start or not self.after_warmup):
            raise ValueError("warmup_start and after_warmup need a warmup above 0")
        if not self.after_warmup and self.shape in ("constant", "steps"):
            raise ValueError(f"after_warmup: false does nothing with shape: {self.shape}: leave it out")
        return self

    @model_validator(mode="after")
    def _steps_have_milestones(self) -> "Schedule":
        if (self.shape == "steps") != bool(self.milestones):
            raise ValueError("milestones and shape: steps go together")
        if any(b <= a for a, b in zip((self.warmup, *self.milestones), self.milestones, strict=False)):
            raise ValueError(f"milestones {list(self.milestones)} must rise, and lie after the warm-up")
        if self.milestones and min(self.start, self.end) <= 0:
            raise ValueError(f"steps from {self.start} to {self.end}: both must be above 0, to have a factor")
        return self

    def at(self, progress: float) -> float:
        """Compute the value at a progress in [0, 1]; outside of it the value is that of the nearest end."""
        where = min(max(progress, 0.0), 1.0)
        if where < self.warmup:
            climb = LinearParamScheduler(self.warmup_start, self._shape_at(self.warmup))
            return float(climb(where / self.warmup))
        return self._shape_at(where)

    def _shape_at(self, where: float) -> float:
        """Compute the value that the shape has at a progress from the warm-up's end on."""
        if self.shape == "constant":
            return self.start
        if self.shape == "steps":
            passed = sum(where >= milestone for milestone in self.milestones)
            return float(self.start * (self.end / self.start) ** (passed / len(self.milestones)))
        begin = self.warmup if self.after_warmup else 0.0
        scheduler = LinearParamScheduler if self.shape == "linear" else CosineParamScheduler
        return float(scheduler(self.start, self.end)((where - begin) / (1.0 - begin)))


def _from_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Schedule(start=value, end=value, shape="constant")
    return value


def _to_number(schedule: Schedule) -> Any:
    constant = schedule.shape == "constant" and schedule.warmup == 0.0
    return schedule.start if constant else schedule.model_dump()


Scheduled = Annotated[Schedule, BeforeValidator(_from_number), PlainSerializer(_to_number)]


def constant(value: float) -> Schedule:
    """Make the schedule that never changes, for defaults."""
    return Schedule(start=value, end=value, shape="constant")
