"""Values that change over a run: learning rate, momentum of the target, temperatures, coefficients."""

from typing import Annotated, Any, Literal

from fvcore.common.param_scheduler import (
    CompositeParamScheduler,
    ConstantParamScheduler,
    CosineParamScheduler,
    LinearParamScheduler,
    ParamScheduler,
)
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from vidssl.config import Settings


class Schedule(Settings):
    """A value from `start` to `end` over a run; a single number in a config stays what it is.

    `warmup` is the share of the run, in [0, 1), in which the value first climbs linearly from 0 to `start`:
    35 of 200 epochs are 0.175. With the shape `steps` the value falls, or rises, by equal factors at the shares of the
    run that `milestones` names: from 1 to 0.04 at 0.6 and 0.8 is a fifth each time.
    """

    start: float
    end: float
    shape: Literal["constant", "linear", "cosine", "steps"] = "cosine"
    warmup: float = Field(default=0.0, ge=0.0, lt=1.0)
    # Of the shape `steps`. Not strict: what a before-validator saw is no longer JSON, in which lists are tuples.
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _constant_is_constant(self) -> "Schedule":
        if self.shape == "constant" and self.start != self.end:
            raise ValueError(f"a constant goes from {self.start} to {self.end}: choose linear or cosine")
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
        """Give the value at a progress in [0, 1]."""
        where = min(max(progress, 0.0), 1.0)
        if self.shape == "constant" and where >= self.warmup:
            return self.start  # fvcore's constant has no value at the very end
        if self.shape == "steps" and where >= self.warmup:
            passed = sum(where >= share for share in self.milestones)
            return float(self.start * (self.end / self.start) ** (passed / len(self.milestones)))
        return float(self._scheduler()(where))

    def _scheduler(self) -> ParamScheduler:
        main: ParamScheduler
        if self.shape == "constant":
            main = ConstantParamScheduler(self.start)
        elif self.shape == "linear":
            main = LinearParamScheduler(self.start, self.end)
        else:
            main = CosineParamScheduler(self.start, self.end)
        if self.warmup == 0.0:
            return main
        climb = LinearParamScheduler(0.0, self.start)
        lengths = [self.warmup, 1.0 - self.warmup]
        return CompositeParamScheduler([climb, main], lengths, ["rescaled", "rescaled"])


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
