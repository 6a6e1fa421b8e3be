"""The Markdown files of the repository, the files that they link to, and their links as the site needs them."""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from papers import paper_page

# Folders and files whose Markdown is part of the site.
PARTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs", "datasets", "docs", "examples", "vidssl/weights")
README, README_PAGE = Path(__file__).resolve().parents[2] / "README.md", "about.md"  # index.html is the start page
COPIED = (".png", ".json")  # a browser shows them; other files get a page that shows their text
_LINK = re.compile(r"(?P<start>\]\(|<img src=\")(?P<path>[^)\s#\":]+)(?=[)#\"])")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def markdown_files(root: Path) -> list[Path]:
    """Find the Markdown files of the site, and the YAML files of papers, whose Markdown is made."""
    files = []
    for part in PARTS:
        files += [root / part] if part.endswith(".md") else sorted((root / part).rglob("*.md"))
    return files + sorted((root / "docs" / "papers").glob("*.yaml"))


def linked_files(files: Iterable[Path]) -> list[Path]:
    """Find the files that Markdown files link to, or show, and that are not Markdown."""
    links = {link for path in files for link in relative_links(path)}
    return sorted(link for link in links if link.is_file() and link.suffix != ".md" and not is_paper(link))


def relative_links(path: Path) -> Iterator[Path]:
    """Yield the absolute path of each link and image of a Markdown file, without its anchor."""
    for part, is_code in _parts(path):
        if not is_code:
            yield from ((path.parent / match["path"]).resolve() for match in _LINK.finditer(part))


def with_site_links(path: Path) -> str:
    """Return the text of a Markdown file; links to code and papers become links to their pages."""

    def replace(match: re.Match[str]) -> str:
        target = (path.parent / match["path"]).resolve()
        if target == README:
            return f"{match[0].removesuffix(README.name)}{README_PAGE}"
        if is_paper(target):
            return f"{match[0].removesuffix('.yaml')}.md"
        has_page = target.is_file() and target.suffix not in (".md", *COPIED)
        return f"{match[0]}.md" if has_page else match[0]

    return "".join(part if is_code else _LINK.sub(replace, part) for part, is_code in _parts(path))


def is_paper(path: Path) -> bool:
    """Tell whether a file holds the experiments of a paper, whose page has the name of the file and `.md`."""
    return path.suffix == ".yaml" and path.parent.name == "papers"


def read_markdown(path: Path) -> str:
    """Return the Markdown of a file, that of a paper made from its YAML."""
    return paper_page(path) if is_paper(path) else path.read_text(encoding="utf-8")


def _parts(path: Path) -> list[tuple[str, bool]]:
    """Split the Markdown of a file: (part, whether it is code)."""
    return [(part, number % 2 == 1) for number, part in enumerate(_CODE.split(read_markdown(path)))]
