"""HTML pages without a server: what every page is made of."""

import base64
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vidssl.base.atomic import write_whole

TEMPLATES = Path(__file__).with_name("templates")  # of all pages; those of an app are in its folder


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


def render_page(path: Path, template: Path, **content: object) -> None:
    """Render a template, and write the page. `left_out` are videos that cannot be read, with the reasons.

    A template includes others of its folder, and those that all pages share: `page/templates`.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, points=_points, short=_short, base64=_base64)
    page = environment.get_template(template.name).render({"left_out": (), **content})
    # File names on Linux may hold bytes that are not UTF-8: they become "?".
    write_whole(path, page.encode("utf-8", errors="replace"))
