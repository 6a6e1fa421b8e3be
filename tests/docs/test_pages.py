"""Pages of the site that are made from code: nothing is missing, and help texts are not read as Markdown."""

import re
import runpy
import unicodedata
from pathlib import Path

import pytest

import vidssl
from vidssl.cli import COMMANDS, Group, parser_of

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docs" / "builder"


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(BUILDER / "pages.py"))


def help_of(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> str:
    _, parser, words = parser_of(command, [*arguments, "--help"])
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    return capsys.readouterr().out


def plain(markdown: str) -> str:
    """The text of a page without escapes, code marks and spaces."""
    return re.sub(r"\s", "", re.sub(r"\\(.)", r"\1", markdown).replace("`", ""))


@pytest.mark.parametrize("command", COMMANDS)
def test_page_of_a_command(made, capsys, command):
    page = plain(made["command_pages"]()[f"docs/commands/{command}.md"])
    entry = COMMANDS[command]
    for name in entry.jobs if isinstance(entry, Group) else [None]:
        text = help_of(capsys, command, *([name] if name else []))
        options = text[text.index("options:") :]
        names = re.findall(r"^  (?:-h, )?(--[\w-]+)", options, re.MULTILINE)
        assert names[0] == "--help" and all(each in page for each in names[1:])
        # The description, which argparse wraps, and the help of the last option.
        description = text.split("\n\n")[1]
        assert plain(description.replace("`", "")).rstrip(".") in page


def test_a_help_text_is_not_markdown(made):
    assert made["_escaped"]("a_b `c_d` <x> [y] 1*2 | z") == r"a\_b `c_d` \<x> \[y] 1\*2 \| z"


def test_page_of_the_api(made):
    pages = made["api_pages"]()
    for name in {*vidssl._HOMES} - {"__version__"}:
        assert f"::: vidssl.{name}\n" in pages["docs/api/vidssl.md"]
    assert "::: vidssl.losses.info_nce\n" in pages["docs/api/vidssl.losses.md"]
    assert "::: vidssl.losses._attend" not in pages["docs/api/vidssl.losses.md"]


def test_page_of_an_example(made, tmp_path):
    (tmp_path / "docs" / "images" / "gallery").mkdir(parents=True)
    (tmp_path / "docs" / "images" / "gallery" / "one.txt").write_text("42\n")
    script = tmp_path / "examples" / "gallery" / "one.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        '"""# One\n\nWhat it does.\n"""\n\n# %%\n# **First**\n# [see](../x.md)\na = 1\n\n# %%\n# The end.\n'
    )
    assert made["code_page"](script, tmp_path) == (
        "# One\n\nWhat it does.\n\n![One](../../docs/images/gallery/one.png)\n\n"
        "**First**\n[see](../x.md)\n\n~~~python\na = 1\n~~~\n\nThe end.\n\n"
        "It prints:\n\n~~~text\n42\n~~~\n\n\nRun it: `python examples/gallery/one.py`.\n"
    )


def test_links_to_code_are_links_to_its_page(tmp_path):
    sources = runpy.run_path(str(BUILDER / "sources.py"))
    for name in ("a.md", "code.py", "image.png"):
        (tmp_path / name).write_text("")
    page = tmp_path / "page.md"
    page.write_text(
        '[a](a.md#x) [c](code.py) `[c](code.py)` ![i](image.png) <img src="image.png">\n```\n[c](code.py)\n```\n'
    )
    assert sources["with_site_links"](page) == page.read_text().replace("[c](code.py)", "[c](code.py.md)", 1)
    assert sources["linked_files"]([page]) == [tmp_path / "code.py", tmp_path / "image.png"]
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    page.write_text("[s](papers/sce.yaml#x) `papers/sce.yaml` [r](README.md#y)\n")
    text = "[s](papers/sce.md#x) `papers/sce.yaml` [r](about.md#y)\n"
    assert sources["with_site_links"](page) == text, "the start page is index.html"


def test_pages_have_the_titles_of_their_first_lines():
    titled = runpy.run_path(str(BUILDER / "build.py"))["with_titles"]
    texts = {
        "about.md": "# vidssl\n",
        "a/SCE.md": "# SCE: `x`\n",
        "L.md": "# L\n",
        "b/L.md": "# L\n\ntext",
        "c.md": "no\n",
    }
    actual = titled(texts)
    assert actual["about.md"].startswith('---\ntitle: "README"\n') and actual["c.md"] == texts["c.md"]
    assert actual["a/SCE.md"] == '---\ntitle: "SCE: x"\n---\n\n# SCE: `x`\n'
    assert 'title: "L: b/L"' in actual["b/L.md"] and 'title: "L: L"' in actual["L.md"]


def test_equations_fit_the_site():
    """Their numbers, on the right, are hidden where a line is longer than a window of 1280 pixels shows."""
    wide = []
    for path in [*(ROOT / "docs" / "methods").glob("*.md"), ROOT / "docs" / "views.md", ROOT / "docs" / "data.md"]:
        language = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("```"):
                language = None if language is not None else line[3:]
            elif language == "" and sum(not unicodedata.combining(letter) for letter in line) > 92:
                wide.append(f"{path.name}:{number}")
    assert wide == []


def test_paths_in_tables_may_break():
    with_breaks = runpy.run_path(str(BUILDER / "build.py"))["with_breaks"]
    page = '<code>a/b</code><td><code>a/b <a href="x/y">c/d</a></code> d/e</td>'
    assert with_breaks(page) == page.replace("<td><code>a/b", "<td><code>a/<wbr>b").replace("c/d", "c/<wbr>d")


def test_options_do_not_break():
    with_breaks = runpy.run_path(str(BUILDER / "build.py"))["with_breaks"]
    kept = '<head>--a</head><a href="x--y">1--2</a> <pre><code>vidssl --no</code></pre><script>i--; --j</script>'
    page = f"{kept} run <code>x --dry-run=1</code> or --all, --k"
    expected = re.sub(r"--(dry-run|all|k)", r'<span class="option">\g<0></span>', page)
    assert with_breaks(page) == expected and expected.count("<span") == 3


MODULE = '''
class Settings:
    """Settings of a thing."""

    clip: Clip
    frames: int = Field(ge=1, le=9)  # of a clip, `T`
    # Seconds
    # per video
    timeout: float | None = None  # noqa: X - reason
    names: list[str] = field(default_factory=list)
    renamed: ClassVar[dict[str, str]] = {}
    known: ClassVar[int] = 3  # that are known
    _hidden: int = 1  # hidden

    def __init__(self):
        self.step = 0  # done so far.
        self.other = 1

    @property
    def cells(self):  # not a field
        """Cells."""


class Bare:
    size: int = 3
'''


def test_comments_of_fields_are_in_the_reference(tmp_path):
    griffe = pytest.importorskip("griffe")
    (tmp_path / "some.py").write_text(MODULE)
    extensions = griffe.load_extensions(str(BUILDER / "field_tables.py"))
    module = griffe.load("some", search_paths=[tmp_path], extensions=extensions)
    assert module["Settings"].docstring.value.splitlines() == [
        "Settings of a thing.",
        "",
        "Attributes:",
        "    clip: Required.",
        "    frames: Of a clip, `T`. At least 1 and at most 9.",
        "    timeout: Seconds per video. Default: `None`.",
        "    names: Default: `list()`.",
        "    known: That are known.",
        "    step: Done so far.",
    ]
    assert module["Bare"].docstring.value == "Settings.\n\nAttributes:\n    size: Default: `3`."
    _, table = module["Settings"].docstring.parse("google")
    assert [str(field.annotation) for field in table.value[:3]] == ["Clip", "int", "float | None"]


def test_every_page_is_in_the_navigation():
    settings = (BUILDER / "zensical.toml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f'"{page}"' not in settings] == []


def test_tables_are_up_to_date():
    tables = runpy.run_path(str(BUILDER / "tables.py"))
    stale = [
        page for page in (ROOT / "docs").rglob("*.md") if tables["renewed"](page) != page.read_text(encoding="utf-8")
    ]
    assert stale == [], "python docs/builder/tables.py"


_PER = re.compile(
    r"\b(seconds|clips|frames|labels?|videos|images|examples|views|GFLOP|ms|s|MB|[0-9]+) a "
    r"(second|video|class|clip|frame|row|step|epoch|batch)\b"
)


def test_rates_are_per_something():
    """`seconds per video`, not `seconds a video`, which is read as a mistake."""
    files = [file for folder in ("vidssl", "docs", "configs", "benchmarks") for file in (ROOT / folder).rglob("*.*")]
    texts = [file for file in files if file.suffix in (".py", ".html", ".js", ".md", ".yaml")]
    assert len(texts) > 300
    assert [(str(file), text[0]) for file in texts for text in [_PER.search(file.read_text("utf-8"))] if text] == []
