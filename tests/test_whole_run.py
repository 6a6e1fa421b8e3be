"""What the next run of CI may leave out, in a repository of its own."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

WHOLE_RUN = runpy.run_path(str(Path(__file__).with_name("whole_run.py")))
changed_since, is_needed, NAME = (WHOLE_RUN[name] for name in ("changed_since", "is_needed", "NAME"))


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Run git in a repository of two commits' worth of files: `git("commit", …)` gives what it prints."""
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "a")
        monkeypatch.setenv(f"{name}_EMAIL", "a@example.org")

    def run(*words):
        done = subprocess.run(["git", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run("init", "--quiet")
    for name in ("vidssl/video/decode.py", "vidssl/data/loader.py", "tests/test_a.py", NAME):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}, long enough that git sees a file of another name as the same one\n")
    run("add", ".")
    run("commit", "--quiet", "-m", "one")
    return run


@pytest.fixture
def recorded(git, tmp_path):
    """Let the first commit be that of the last whole run, in a commit after it, as it is kept."""
    (tmp_path / NAME).write_text(git("rev-parse", "HEAD") + "\n")
    git("commit", "--quiet", "-am", "two")


def test_nothing_has_changed(recorded, tmp_path):
    assert changed_since(tmp_path) == set()


def test_all_changes_count(recorded, git, tmp_path):
    (tmp_path / "vidssl/data/new ключ.py").write_text("")  # untracked
    (tmp_path / "vidssl/data/loader.py").write_text("changed")  # not committed
    git("mv", "vidssl/video/decode.py", "vidssl/video/moved.py")
    git("commit", "--quiet", "-m", "moved")
    git("rm", "--quiet", "tests/test_a.py")  # staged
    assert changed_since(tmp_path) == {
        *("vidssl/data/new ключ.py", "vidssl/data/loader.py", "tests/test_a.py"),
        *("vidssl/video/decode.py", "vidssl/video/moved.py"),
    }


def test_a_commit_that_is_missing_unknown_or_unrelated_means_the_whole_run(recorded, git, tmp_path):
    last = git("rev-parse", "HEAD")
    git("checkout", "--quiet", "--orphan", "other")
    git("commit", "--quiet", "-m", "other")
    unrelated = git("rev-parse", "HEAD")
    git("checkout", "--quiet", "-f", last)
    for text in ("", "\n", "HEAD", last[:12], "0" * 40, unrelated):
        (tmp_path / NAME).write_text(text)
        assert changed_since(tmp_path) is None, text
    (tmp_path / NAME).unlink()
    assert changed_since(tmp_path) is None


def test_a_clone_without_history_means_the_whole_run(recorded, git, tmp_path):
    for name, options, expected in (("shallow", ["--depth", "1"], None), ("whole", [], set())):
        git("clone", "--quiet", *options, f"file://{tmp_path}", name)
        assert changed_since(tmp_path / name) == expected


def test_outside_of_a_repository(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / NAME).write_text("0" * 40)
    assert changed_since(tmp_path) is None


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("vidssl/video/decode.py", True),
        ("vidssl/video.py", False),
        ("vidssl/videos/decode.py", False),
        ("vidssl/data/loader.py", True),
        ("vidssl/data/dataset.py", False),
        ("tests/video/test_long.py", True),
        ("tests/video/test_other.py", False),
        ("tests/video/conftest.py", True),
        ("tests/toys.py", True),
        ("setup.py", True),
        ("README.md", False),
    ],
)
def test_what_a_test_covers(path, needed):
    covered = ("vidssl/video", "vidssl/data/loader.py")
    assert is_needed("tests/video/test_long.py", covered, ["docs/index.md", path]) is needed
    assert not is_needed("tests/video/test_long.py", covered, [])


SUITE = """
import pytest

@pytest.mark.covers("vidssl/video")
def test_of_videos():
    pass

@pytest.mark.covers("vidssl/data")
def test_of_data():
    pass

def test_always():
    pass
"""


class Passed:
    """Collects what passed."""

    def __init__(self):
        self.names = set()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.names.add(report.nodeid.rpartition("_")[2])


def outcomes(folder, options):
    """Run the suite of a folder; give what passed, or else its status."""
    passed = Passed()
    given = ["-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(folder), *options]
    status = pytest.main([*given, str(folder / "tests")], plugins=[passed])
    return passed.names or {status}


def test_tests_of_what_has_not_changed_are_left_out(recorded, git, run_world, tmp_path):
    """With the option of pytest alone; and a mark that names no file is an error."""
    tests = Path(__file__).parent
    for name in ("conftest.py", "whole_run.py", "distributed/world.py"):
        (tmp_path / "tests" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tests" / name).write_bytes((tests / name).read_bytes())
    (tmp_path / "tests/test_a.py").write_text(SUITE)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["covers(*paths)"]\n')

    def ran(*options):
        (found,) = run_world(1, outcomes, tmp_path, options)
        return found

    option = "--changed-since-whole-run"
    assert ran(option) == {"videos", "data", "always"}  # their own file is new
    git("add", ".")
    git("commit", "--quiet", "-m", "three")
    (tmp_path / NAME).write_text(git("rev-parse", "HEAD"))
    assert ran(option) == {"always"}
    (tmp_path / "vidssl/data/loader.py").write_text("changed")
    assert ran(option) == {"data", "always"} and ran() == {"videos", "data", "always"}
    (tmp_path / "tests/test_a.py").write_text(SUITE.replace("vidssl/data", "vidssl/date"))
    assert ran() == {pytest.ExitCode.USAGE_ERROR}


def test_a_whole_run_is_recorded_if_nothing_changed_meanwhile(recorded, git, tmp_path):
    script = tmp_path / "tests/whole_run.py"
    script.write_bytes(Path(__file__).with_name("whole_run.py").read_bytes())

    def run(*words):
        return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True).stdout

    def kept():
        return (tmp_path / NAME).read_text()

    before = kept()
    assert run("commit").strip() == ""  # the script is not committed
    assert "left as it is" in run("record") and kept() == before
    git("add", ".")
    git("commit", "--quiet", "-m", "three")
    commit = run("commit").strip()
    assert commit == git("rev-parse", "HEAD")
    (tmp_path / "tests/test_a.py").write_text("changed")
    assert "left as it is" in run("record", commit) and kept() == before
    git("commit", "--quiet", "-am", "four")
    assert "left as it is" in run("record", commit) and kept() == before
    assert run("record", run("commit").strip()) == "" and kept().strip() == git("rev-parse", "HEAD")
    assert changed_since(tmp_path) == set() and run("commit").strip()  # the record is no change
