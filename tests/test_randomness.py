"""Random numbers as a function of their key."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from vidssl.base.keyed_generators import generator

KEYS = [(seed, epoch, index, view) for seed, epoch, index, view in product((0, 1), (0, 1), (0, 1, 2), (0, 1))]


def test_equal_keys_give_equal_streams():
    for key in KEYS:
        assert np.array_equal(generator(*key).random(20), generator(*key).random(20))


def test_different_keys_give_different_streams():
    streams = {key: tuple(generator(*key).random(4)) for key in [*KEYS, (0,), (1,), (0, 0), (0, 1), (0, 0, 0)]}
    assert len(set(streams.values())) == len(streams)


def test_streams_are_independent():
    numbers = np.stack([generator(0, 0, index, 0).standard_normal(4000) for index in range(8)])
    correlation = np.corrcoef(numbers) - np.eye(8)
    assert np.abs(correlation).max() < 0.08  # five standard deviations
    assert np.abs(numbers.mean(axis=1)).max() < 0.08


def test_nothing_global_is_read_or_changed():
    np.random.seed(0)  # noqa: NPY002, TID251
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = generator(3, 4).random()
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002, TID251
    assert generator(3, 4).random() == first


def test_streams_are_the_same_in_every_process():
    code = "from vidssl.base.keyed_generators import generator; print(generator(5, 1, 2, 3).integers(2**62))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == generator(5, 1, 2, 3).integers(2**62)


def test_streams_stay_what_they_are():
    """A change of these numbers changes every run that anybody has made."""
    assert generator(0, 1, 2, 3).integers(1000, size=5).tolist() == [953, 836, 221, 927, 968]


@pytest.mark.parametrize("key", [(-1,), (0, -1)])
def test_negative_keys_are_refused(key):
    with pytest.raises(ValueError, match="negative"):
        generator(*key)
