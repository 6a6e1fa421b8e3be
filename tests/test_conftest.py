"""Skips that VIDSSL_REQUIRE makes errors, in a suite of its own: a checkout without the real videos beside it."""

import shutil
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SUITE = """
import pytest

def test_needs_real_videos(real):
    pass

@pytest.mark.skipif(True, reason="torch sees no GPU here")
def test_needs_a_gpu():
    pass

def test_needs_a_package():
    pytest.importorskip("no_such_package", reason="no_such_package is not installed")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False

def test_good():
    pass
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout") / "clone" / "tests"
    (folder / "distributed").mkdir(parents=True)
    for name in ("conftest.py", "forked_python.py", "distributed/world.py"):
        shutil.copy(TESTS / name, folder / name)
    (folder / "test_some.py").write_text(SUITE)
    (folder / "test_whole.py").write_text('import pytest\npytest.importorskip("no_such_package")\n')
    return folder


class Seen:
    """Collects how each test, or a file that cannot be collected, came out."""

    def __init__(self):
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid.rpartition("::")[2]] = report.outcome

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self.outcomes[Path(report.nodeid).name] = report.outcome


def outcomes(folder):
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--continue-on-collection-errors"]
    seen = Seen()
    status = pytest.main([*options, "--rootdir", str(folder), str(folder)], plugins=[seen])
    return int(status), seen.outcomes


@pytest.mark.parametrize(
    ("required", "failed"),
    [
        ("", set()),
        ("shared, GPU", {"test_needs_a_gpu", "test_needs_real_videos"}),
        ("all", {"test_needs_a_gpu", "test_needs_a_package", "test_needs_real_videos", "test_whole.py"}),
    ],
)
def test_a_skip_of_what_is_required_is_an_error(suite, run_world, required, failed):
    ((status, result),) = run_world(1, outcomes, suite, env={"VIDSSL_REQUIRE": required})
    assert {name for name, outcome in result.items() if outcome == "failed"} == failed
    skipped = {"test_needs_a_gpu", "test_needs_a_package", "test_needs_real_videos", "test_whole.py"} - failed
    skipped |= {"test_expected_to_fail"}
    assert {name for name, outcome in result.items() if outcome == "skipped"} == skipped
    assert result["test_good"] == "passed" and status == (1 if failed else 0)
