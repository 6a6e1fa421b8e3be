"""The count of the budget: code lines, modules and words of rows, and the difference that is printed."""

import runpy
from pathlib import Path

import pytest

PATH = Path(__file__).with_name("budget.py")
BUDGET = runpy.run_path(str(PATH), run_name="budget")

SOURCE = '''"""A module."""

import os  # counts


# not this
def f():
    """Two
    lines."""
    text = """three

    lines"""
    return os, text
'''


def test_lines_with_code_are_counted():
    assert BUDGET["code_lines"](SOURCE) == 1 + 1 + 3 + 1
    assert BUDGET["code_lines"]("") == 0


def test_each_file_has_a_row():
    files = {
        **{"vidssl/__init__.py": "a = 1", "vidssl/data/x.py": "a = 1\nb = 2", "vidssl/apps/__init__.py": "c = 3"},
        **{
            "vidssl/apps/map/page.py": SOURCE,
            "tests/test_x.py": "d = 4",
            "docs/x.md": "two words",
            "docs/y.yaml": "no",
        },
    }
    assert BUDGET["count"](files.items()) == {"core": 4, "apps.map": 6, "tests": 1, "docs": 2, "modules": 4}


def test_over_the_budget_is_an_error(monkeypatch, capsys):
    monkeypatch.setitem(BUDGET["main"].__globals__, "checkout", lambda: [("vidssl/a.py", "a = 1\n" * 100_000)])
    monkeypatch.setitem(BUDGET["main"].__globals__, "last_commit", lambda: [("vidssl/a.py", "a = 1\n")])
    with pytest.raises(SystemExit) as status:
        BUDGET["main"]()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert status.value.code == 1 and "100,000" in lines["core"] and "+99,999   over the budget" in lines["core"]
    assert "over" not in lines["modules"]
