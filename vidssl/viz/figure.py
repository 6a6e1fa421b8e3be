"""What all figures share: colours, axes without clutter, and writing as PNG."""

import io
from typing import TYPE_CHECKING, Any

from vidssl.viz.font_fallback import make_readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PALE = "#33373d", "#b9bdc3"
COLORS = ("#2a5bc7", "#c2570c", "#2b8a5a", "#8a4fb5", "#b3262e", "#0e8fa3", "#8a7a1f", "#6b7078")


def new_figure(width: float, height: float, padding: float | None = None) -> "Figure":
    """Make a white figure; all lengths are inches. Not by pyplot, which would keep it in memory."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=padding, h_pad=padding)
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def style(axes: "Axes", title: str, unit: str, pad: float) -> None:
    """Set title, unit, horizontal grid and the colours of the frame."""
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold", pad=pad)
    axes.set_ylabel(unit, fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, length=3)
    axes.grid(axis="y", color="#e6e7e9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)


def add_legend(axes: "Axes", **options: Any) -> None:
    """Add a legend without a frame; the options are those of `Axes.legend`."""
    for text in axes.legend(fontsize=8.5, frameon=False, labelcolor=INK, **options).get_texts():
        text.set_parse_math(False)  # names may hold dollar signs


def png(figure: "Figure", dpi: int = 150) -> bytes:
    """Encode a figure as a PNG file, its names in any script; equal figures give equal bytes."""
    make_readable(figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, metadata={"Software": None})
    return content.getvalue()


def shortened(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, the last one an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
