"""Check the pages of a built site: links, anchors, images, titles, and requests to other hosts."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class _Page(HTMLParser):
    """Collects the anchors, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read the attributes of an element."""
        attributes = dict(attrs)
        self.anchors.update(value for key in ("id", "name") if (value := attributes.get(key)))
        if tag == "a" and (link := attributes.get("href")):
            self.links.append(link)
        elif tag in ("img", "script", "link", "source", "iframe") and attributes.get("rel") != "canonical":
            self.loaded += [value for key in ("src", "href") if (value := attributes.get(key))]


def problems(site: Path) -> list[str]:
    """List links to what does not exist, files that are loaded from other hosts, and titles of several pages."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    titles = Counter(page.title[1] for page in pages.values() if page.title)
    messages = [f"{count} pages have the title {title}" for title, count in titles.items() if count > 1]
    for path, page in pages.items():
        name = path.relative_to(site)
        messages += [f"{name}: loads {link} from the network" for link in page.loaded if urlsplit(link).netloc]
        for link in (*page.links, *page.loaded):
            address, anchor = urldefrag(link)
            if urlsplit(link).scheme or urlsplit(link).netloc:
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                messages.append(f"{name}: {link} does not exist")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                messages.append(f"{name}: {link} has no such anchor")
    return messages
