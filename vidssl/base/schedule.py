"""Values that change over a run: learning rate, momentum of the target, temperatures, coefficients."""

from typing import Annotated, Any, Literal

from fvcore.common.param_scheduler import CosineParamScheduler, LinearParamScheduler
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from vidssl.base.config import Settings


class Schedule(Settings):
    """A value that goes from `start` to `end` over a run; in a config a plain number is a constant."""

    start: float
    end: float
    shape: Literal["constant", "linear", "cosine", "steps"] = "cosine"
    warmup: float = Field(default=0.0, ge=0.0, lt=1.0)  # fraction of the run of a linear climb from `warmup_start`
    warmup_start: float = 0.0
    # Linear and cosine begin after the warm-up, at `start`. If false they cover the whole run, and the warm-up climbs
    # to their value at its end: SlowFast's `COSINE_AFTER_WARMUP: False`.
    after_warmup: bool = True
    # Fractions of the run at which `steps` multiplies the value by an equal factor: from 1 to 0.04 by a fifth at two.
    # Not strict: after the before-validator of `Scheduled` pydantic no longer accepts a list for a tuple.
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _is_consistent(self) -> "Schedule":
        if self.shape == "constant" and self.start != self.end:
            raise ValueError(f"shape: constant cannot go from {self.start} to {self.end}: choose linear or cosine")
        if not self.warmup and (self.warmup_start or not self.after_warmup):
            raise ValueError("warmup_start and after_warmup need a warmup above 0")
        if not self.after_warmup and self.shape in ("constant", "steps"):
            raise ValueError(f"after_warmup: false has no effect with shape: {self.shape}: remove it")
        if (self.shape == "steps") != bool(self.milestones):
            raise ValueError("milestones and shape: steps need each other")
        if any(b <= a for a, b in zip((self.warmup, *self.milestones), self.milestones, strict=False)):
            raise ValueError(f"milestones {list(self.milestones)} must increase and come after the warm-up")
        if self.milestones and min(self.start, self.end) <= 0:
            raise ValueError(f"shape: steps needs start and end above 0, got {self.start} and {self.end}")
        return self

    def at(self, progress: float) -> float:
        """Compute the value at a progress; progress outside [0, 1] is clamped."""
        where = min(max(progress, 0.0), 1.0)
        if where < self.warmup:
            climb = LinearParamScheduler(self.warmup_start, self.at(self.warmup))
            return float(climb(where / self.warmup))
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
        return Schedule.model_validate({"start": value, "end": value, "shape": "constant"})
    return value


def _to_number(schedule: Schedule) -> Any:
    constant = schedule.shape == "constant" and schedule.warmup == 0.0
    return schedule.start if constant else schedule.model_dump()


def _above_zero(value: Schedule) -> Schedule:
    if min(value.start, value.end) <= 0 or (value.warmup and value.warmup_start <= 0):
        raise ValueError("must be above 0 all the time: start, end and, with a warmup, warmup_start (default 0)")
    return value


def _in_unit_interval(value: Schedule) -> Schedule:
    if not all(0 <= number <= 1 for number in (value.start, value.end, value.warmup_start)):
        raise ValueError("must stay between 0 and 1")
    return value


Scheduled = Annotated[Schedule, BeforeValidator(_from_number), PlainSerializer(_to_number)]
Temperature = Annotated[Scheduled, AfterValidator(_above_zero)]
UnitInterval = Annotated[Scheduled, AfterValidator(_in_unit_interval)]


def constant(value: float) -> Schedule:
    """Make a schedule that never changes."""
    return Schedule(start=value, end=value, shape="constant")
