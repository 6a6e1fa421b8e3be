"""ReSSL: what its settings must keep. The loss is tested with those of the other methods."""

import pytest

from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, constant
from vidssl.methods.ressl import ReSSL


@pytest.mark.parametrize(
    ("tau", "tau_m", "shown"),
    [
        (constant(0.1), constant(0.1), "0.1 is not below temperature 0.1 at 0.0% of the run"),
        (constant(0.1), constant(0.2), "0.2 is not below temperature 0.1 at 0.0% of the run"),
        # They cross at the middle of the run, both along a line.
        (
            Schedule(start=0.2, end=0.1, shape="linear"),
            Schedule(start=0.1, end=0.2, shape="linear"),
            "0.15 is not below temperature 0.15 at 50.0% of the run",
        ),
        (constant(0.1), Schedule(start=0.04, end=0.1), "0.1 is not below temperature 0.1 at 100.0% of the run"),
    ],
)
def test_a_target_that_is_not_sharper_is_refused(tau, tau_m, shown):
    with pytest.raises(ConfigError, match=f"target_temperature {shown}"):
        ReSSL.Config(temperature=tau, target_temperature=tau_m)


def test_a_target_that_stays_sharper_is_not():
    falling = Schedule(start=0.2, end=0.1), Schedule(start=0.1, end=0.05)
    for tau, tau_m in ((constant(0.1), constant(0.0999)), falling):
        assert ReSSL.Config(temperature=tau, target_temperature=tau_m).target_temperature == tau_m
