"""Build the documentation into a static site, `site/`; `make site` runs it.

    python docs/builder/build.py

The Markdown files of the repository are copied to `output/site/` at their own paths, so that links between them stay
valid; the start page, `home.html`, and pages that are made from code are added; Zensical renders them, and stops at a
broken link. Then the links and anchors of the written pages are checked, those in raw HTML and between generated pages
too.
"""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from check_site import problems  # noqa: E402
from pages import api_pages, code_page, command_pages  # noqa: E402
from sources import COPIED, README_PAGE, linked_files, markdown_files, with_site_links  # noqa: E402

SOURCE = ROOT / "output" / "site"
SITE = ROOT / "site"
_NOT_SEARCHED = ("CHANGELOG.md", "docs/results/diary.md")  # they mention everything, and explain little
_OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")
_NO_TEXT = re.compile(r"(<(?:head|script|pre)\b.*?</(?:head|script|pre)>|<[^>]*>)", re.DOTALL)  # of a line that wraps


def main() -> int:
    """Build the site; return the exit status."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    write_sources(SOURCE)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    if status := subprocess.run(command, cwd=SOURCE).returncode:
        return status
    (SOURCE / "html").rename(SITE)
    for path in SITE.rglob("*.html"):
        path.write_text(with_breaks(path.read_text(encoding="utf-8")), encoding="utf-8")
    (SITE / "404.html").unlink()  # its links are absolute: right for one address only
    messages = problems(SITE)
    print(*messages, f"{SITE / 'index.html'}: {len(messages)} problems", sep="\n")
    return min(len(messages), 1)


def write_sources(folder: Path) -> None:
    """Write what Zensical reads: its settings, the Markdown files, and the pages that are made from code."""
    builder, files = Path(__file__).parent, markdown_files(ROOT)
    hidden = "---\nhide: [navigation, toc, path, footer]\n---\n\n"
    texts = command_pages() | api_pages() | {"index.md": hidden + (builder / "home.html").read_text(encoding="utf-8")}
    texts |= {str(path.relative_to(ROOT).with_suffix(".md")): with_site_links(path) for path in files}
    texts[README_PAGE] = texts.pop("README.md")
    copies = {"extra.css": builder / "extra.css"}
    for path in linked_files(files):
        name = str(path.relative_to(ROOT))
        if path.suffix in COPIED:
            copies[name] = path
        else:
            texts[f"{name}.md"] = code_page(path, ROOT)
    for name in (*texts, *copies):
        (folder / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in with_titles(texts).items():
        (folder / "pages" / name).write_text(text, encoding="utf-8")
    for name, path in copies.items():
        shutil.copyfile(path, folder / "pages" / name)
    settings = (builder / "zensical.toml").read_text(encoding="utf-8")
    for part in ("docs/commands", "docs/api"):
        settings = settings.replace(f'"{part}/*"', json.dumps(_in_order(part, texts))[1:-1])
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")


def with_titles(texts: Mapping[str, str]) -> dict[str, str]:
    """Give each page the title of its first line, which a browser shows; the navigation has a shorter one for some.

    Titles that several pages have get the path of the page; the README, whose title is that of the site, is "README".
    """
    titles = {name: re.sub(r"[`*]", "", text.partition("\n")[0].removeprefix("# ")) for name, text in texts.items()}
    count = Counter(titles.values())
    pages = {}
    for name, text in texts.items():
        search = "search:\n  exclude: true\n" if name in _NOT_SEARCHED else ""
        title = titles[name] if count[titles[name]] == 1 else f"{titles[name]}: {name.removesuffix('.md')}"
        title = "README" if name == README_PAGE else title
        titled = text.startswith("# ")
        pages[name] = f"---\ntitle: {json.dumps(title, ensure_ascii=False)}\n{search}---\n\n{text}" if titled else text
    return pages


def _in_order(part: str, names: Iterable[str]) -> list[str]:
    """List the pages of a folder for the navigation, its index first."""
    pages = [name for name in names if Path(name).parent == Path(part)]
    return sorted(pages, key=lambda name: Path(name).stem != "index")


def with_breaks(page: str) -> str:
    """Allow lines to break after the slashes of a path in a table, and not after the hyphens of an option."""
    page = "".join(
        part if part.startswith("<") else _OPTION.sub(r'<span class="option">\g<0></span>', part)
        for part in _NO_TEXT.split(page)
    )
    cell, code, text = (
        re.compile(pattern, re.DOTALL) for pattern in (r"<td\b.*?</td>", r"<code>.*?</code>", r">[^<]+")
    )

    def broken(match: re.Match[str]) -> str:
        return text.sub(lambda part: part[0].replace("/", "/<wbr>"), match[0])

    return cell.sub(lambda match: code.sub(broken, match[0]), page)


if __name__ == "__main__":
    sys.exit(main())
