"""The tool that makes tables of results, and its mistakes, from its command line."""

import json
import runpy
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.fixture
def tool(tmp_path, monkeypatch, capsys):
    """Run tools/report.py in tmp_path; give its exit status and what it prints and says beside that."""
    monkeypatch.chdir(tmp_path)

    def run(*told):
        monkeypatch.setattr(sys, "argv", ["report.py", *told])
        status = 0
        try:
            runpy.run_path(str(TOP / "tools" / "report.py"), run_name="__main__")
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def test_the_tool_prints_and_writes_tables(tool, tmp_path):
    (tmp_path / "output/a").mkdir(parents=True)
    (tmp_path / "output/a/results.json").write_text(
        json.dumps({"list": "lists/ucf101/test1.csv", "knn": 0.25})
    )
    status, out, _ = tool("output", "--out", "page")
    assert not status and "## UCF101" in out and " 25.0 |" in out and out.endswith("page/report.html\n")
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"report.md", "report.html"}
    page = tmp_path / "page.md"
    page.write_text("<!-- report: ucf101 -->\n<!-- end of report -->\n")
    assert tool("output", "--into", "page.md")[:2] == (0, "page.md\n")
    assert " 25.0 |" in page.read_text()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (["none"], "error: none is not a folder"),
        (["."], "error: no results.json in ."),
        ([".", "--into", "none.md"], "error: cannot read none.md: No such file"),
        ([".", "--into", "a", "--out", "b"], "not allowed with"),
        ([], "required"),
    ],
)
def test_mistakes_end_with_one_line(tool, told, message):
    status, out, said = tool(*told)
    assert status == 2 and not out and message in said and "Traceback" not in said
