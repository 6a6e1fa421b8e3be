"""Links of the Markdown files: the files and headings that they name exist. No build is needed."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docs" / "builder"
read_markdown = runpy.run_path(str(BUILDER / "sources.py"))["read_markdown"]
FILES = [path for part in ("docs", "configs", "datasets", "examples", "vidssl") for path in (ROOT / part).rglob("*.md")]
FILES += [*(ROOT / "docs" / "papers").glob("*.yaml")]
FILES += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a file, and the ids in it."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return names | {*re.findall(r'<div id="([\w-]+)"', text)}


def broken_links(path: Path) -> list[str]:
    collected = []
    for groups in LINK.findall(without_code(read_markdown(path))):
        link = "".join(groups)
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists():
            collected.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(read_markdown(target)):
            collected.append(f"{link}: no such heading")
    return collected


def test_links_of_the_files():
    actual = {str(path.relative_to(ROOT)): broken_links(path) for path in FILES}
    assert actual and {name: links for name, links in actual.items() if links} == {}


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.md").write_text(
        "# Who: me\n\n[x](b.md) [y](#who-me) [z](#you) `[c](none.md)` [h](https://x.org/y)\n"
    )
    assert broken_links(tmp_path / "a.md") == ["b.md: no such file", "#you: no such heading"]


def test_modules_that_pages_name_exist():
    """Those in backquotes, by their path from the top or from vidssl/, or by the end of it."""
    elsewhere = {"train_net.py"}  # of detectron2
    known = "\n".join(path.as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts) + "\n"
    missing = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        own = {*re.findall(r"`(my_\w+\.py|vidssl/apps/count\.py)`", text)}  # that extend.md writes
        names = {*re.findall(r"`((?:\w+/)*\w+\.py)`", text)} - own - elsewhere
        missing += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(names) if f"/{name}\n" not in known]
    assert missing == []


def test_every_image_is_shown():
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert [path.name for path in (ROOT / "docs" / "images").rglob("*.png") if path.name not in text] == []


def test_the_check_of_a_site(tmp_path):
    problems = runpy.run_path(str(BUILDER / "check_site.py"))["problems"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<h1 id="top">t</h1><a href="../a.html#b">a</a><a href="">self</a>')
    (tmp_path / "a.html").write_text(
        '<p id="b"></p><a href="folder/#top">x</a> <a href="https://x.org">y</a> <a href="folder/#no">z</a>'
        '<a href="none.html">n</a><img src="none.png"><script src="https://x.org/a.js"></script>'
    )
    assert problems(tmp_path) == [
        "a.html: loads https://x.org/a.js from the network",
        "a.html: folder/#no has no such anchor",
        "a.html: none.html does not exist",
        "a.html: none.png does not exist",
    ]
    for name in ("b", "c"):
        (tmp_path / f"{name}.html").write_text("<title>SCE - vidssl</title>")
    assert problems(tmp_path)[0] == "2 pages have the title SCE - vidssl"
