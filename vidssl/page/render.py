"""HTML pages without a server: what every page is made of."""

import base64
import os
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vidssl.base.atomic import write_whole

TEMPLATES = Path(__file__).with_name("templates")  # of all pages; those of an app are in its folder


_DENSITY = 1.6  # pixels of a chart for each of the page


def _short(name: str, limit: int = 20) -> str:
    """File name, with its middle left out if it is long: videos often differ at the start or end."""
    file = name.rstrip("/").rsplit("/", 1)[-1] or name
    tail = limit // 2
    return file if len(file) <= limit else f"{file[: limit - tail - 1]}…{file[-tail:]}"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def _points(difference: float | None) -> str:
    """Difference of fractions in percentage points, with its sign; 0 is +0.0."""
    return "–" if difference is None else f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _png_width(image: bytes) -> int:
    """Width on the page of a PNG file, whose header states its pixels."""
    return round(int.from_bytes(image[16:20], "big") / _DENSITY)


def address_from(folder: Path, path: str | Path) -> str:
    """The address of a file from a page in a folder, so that both may be moved; "" for what no browser can open."""
    # As the paths are written: a browser resolves `..` in the text of an address, and follows no links for it.
    return quote(os.fsencode(os.path.relpath(path, folder))) if os.path.lexists(path) else ""


def render_page(path: Path, template: Path, **content: object) -> None:
    """Render a template as `page_bytes`, and write the page."""
    write_whole(path, page_bytes(template, **content))


def page_bytes(template: Path, **content: object) -> bytes:
    """Render a template. `left_out` are videos that cannot be read, with the reasons.

    A template includes others of its folder, and those that all pages share: `page/templates`.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, points=_points, short=_short, base64=_base64, png_width=_png_width)
    page = environment.get_template(template.name).render({"left_out": (), **content})
    # File names on Linux may hold bytes that are not UTF-8: they become "?".
    return page.encode("utf-8", errors="replace")
