"""Which files changed since the commit at which `make test-all` was green: `tests/last_whole_run` holds it.

`python tests/whole_run.py commit` gives the commit of a working tree without changes, `… record COMMIT` keeps it.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "tests/last_whole_run"
CHANGES = ("status", "--porcelain", "--", ".", f":!{NAME}")


def git(root: Path, *words: str) -> str | None:
    """What git says in a folder, or None where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def changed_since(root: Path) -> set[str] | None:
    """Files that differ from those of the last whole run, under old and new names; None where that is not known."""
    file = root / NAME
    commit = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    if len(commit) != 40 or git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    tracked = git(root, "diff", "--name-only", "--no-renames", "-z", commit)
    untracked = git(root, "ls-files", "--others", "--exclude-standard", "--full-name", "-z")
    if tracked is None or untracked is None:
        return None
    return {name for name in (tracked + untracked).split("\0") if name} - {NAME}


def is_needed(own: str, covered: Iterable[str], changed: Iterable[str]) -> bool:
    """Whether a test runs: its file, a file or folder that it covers, or what all tests share has changed."""
    always = (own, "pyproject.toml", "setup.py")
    return any(
        any(path == name or path.startswith(f"{name}/") for name in (*always, *covered))
        or (path.startswith("tests/") and not Path(path).name.startswith("test_"))
        for path in changed
    )


def commit_of(root: Path) -> str:
    """The commit that is checked out; none where the working tree differs from it."""
    return "" if git(root, *CHANGES) != "" else (git(root, "rev-parse", "HEAD") or "").strip()


def main() -> None:
    """Give the commit, or record it where it is still that of the working tree."""
    found = commit_of(ROOT)
    if sys.argv[1] == "commit":
        print(found)
    elif found and sys.argv[2:] == [found]:
        (ROOT / NAME).write_text(f"{found}\n", encoding="ascii")
    else:
        print(f"{NAME} is left as it is: the working tree has changes, or they came while the tests ran")


if __name__ == "__main__":
    main()
