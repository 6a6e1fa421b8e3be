"""One small rendered set for all runs."""

import pytest


@pytest.fixture(scope="session")
def toy_data(digits):
    """The set that the toy configs ask for."""
    return digits
