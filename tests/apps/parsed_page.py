"""A page as a browser sees it: for the tests of pages, by `runpy.run_path`."""

from html.parser import HTMLParser


class ParsedPage(HTMLParser):
    """Elements in order, texts outside of styles and scripts, and scripts; each element is closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"] and data.strip():
            self.texts.append(" ".join(data.split()))

    def with_attribute(self, name: str, value: str) -> list[dict[str, str | None]]:
        """The attributes of each element that has this one."""
        return [attributes for _, attributes in self.elements if attributes.get(name) == value]
