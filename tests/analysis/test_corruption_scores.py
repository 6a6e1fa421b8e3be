"""mPC and rPC by hand, and the published pairs of Mini-Kinetics-C."""

import pytest

from vidssl.apps.analysis.robustness import by_group, by_severity, mean_performance, relative_performance

SCORES = {"a": {1: 0.8, 3: 0.6}, "b": {1: 0.5, 3: 0.1}, "c": {1: 0.4, 3: 0.0}}


def test_golden_arithmetic():
    assert mean_performance(SCORES) == pytest.approx((0.7 + 0.3 + 0.2) / 3)  # 0.4
    assert relative_performance(SCORES, 0.8) == pytest.approx(0.5)
    assert relative_performance(SCORES, 0.0) is None
    assert by_group(SCORES, {"a": "x", "b": "y", "c": "y"}) == pytest.approx({"x": 0.7, "y": 0.25})
    assert by_severity(SCORES, (1, 3)) == pytest.approx({1: 1.7 / 3, 3: 0.7 / 3})


@pytest.mark.parametrize(("clean", "mpc", "rpc"), [(73.0, 59.2, 81.1), (66.2, 53.3, 80.5)])
def test_published_rows_follow_the_definition(clean, mpc, rpc):
    """R3D-50 and R3D-18 on Mini-Kinetics-C (Yi et al., 2021)."""
    scores = {"any": {1: mpc + 10, 2: mpc - 10}, "other": {1: mpc, 2: mpc}}
    assert 100 * relative_performance(scores, clean) == pytest.approx(rpc, abs=0.05)
