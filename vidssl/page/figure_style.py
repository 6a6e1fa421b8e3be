"""What all figures share: colours, axes without clutter, and writing as PNG."""

import io
import logging
import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vidssl.base.errors import first_few

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_log = logging.getLogger(__name__)
_OWN = "DejaVu Sans"
_named = set[str]()  # what a warning has named: a page has many charts
_NO_LETTERS = ("Last Resort", _OWN)  # the first one has boxes with the name of the script


def make_readable(figure: "Figure") -> dict[str, str]:
    """Give the texts of a figure fonts that have their letters.

    Letters that no installed font has are replaced by a number in brackets, with their code points below the figure.
    Returns these numbers, by the letters.
    """
    from matplotlib.font_manager import findfont
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_majorticklabels()  # writes the labels, which are else written when the figure is drawn
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    letters = {letter for text in texts for letter in text.get_text() if not letter.isascii()}
    missing = frozenset(letters - _letters_of(str(findfont(_OWN)))) if letters else frozenset[str]()
    right_to_left = {letter for letter in letters if unicodedata.bidirectional(letter) in ("R", "AL")}
    reversed_ = frozenset[str]() if _shapes() else frozenset(right_to_left)
    if not missing | reversed_:
        return {}
    families, unknown = _fallbacks(missing)
    for text in texts:
        if not missing.isdisjoint(text.get_text()):
            # Not bold: few fonts of other scripts are installed in other weights.
            text.set(fontfamily=[*text.get_fontfamily(), *families], fontweight="normal")
    return _number(figure, texts, unknown | reversed_) if unknown | reversed_ else {}


def _shapes() -> bool:
    """Whether matplotlib joins letters and writes from right to left, as from 3.11 on."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


def _number(figure: "Figure", texts: list["Text"], unknown: frozenset[str]) -> dict[str, str]:
    """Replace each run of letters without a glyph by a number, and explain the numbers."""
    runs = re.compile(f"[{re.escape(''.join(sorted(unknown)))}]+")
    unreadable = dict.fromkeys(run for text in texts for run in runs.findall(text.get_text()))
    numbers = {run: f"[{number}]" for number, run in enumerate(unreadable, start=1)}

    def replaced(text: str) -> str:
        return runs.sub(lambda match: numbers[match[0]], text)

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_majorticklabels()]
            if any(map(runs.search, labels)):  # the axis would write its own labels again when it is drawn
                axis.set_ticklabels([*map(replaced, labels)])
    for text in texts:
        text.set_text(replaced(text.get_text()))
    new = [f"{run!r} {number}" for run, number in numbers.items() if run not in _named]
    if new:
        _named.update(numbers)
        message = "no installed font has the letters of %s: charts have numbers for them; install a font that has them"
        _log.warning(message, first_few(new, 5))
    if figure.get_layout_engine() is not None:  # which makes room for it
        codes = (f"{number} {' '.join(f'U+{ord(letter):04X}' for letter in run)}" for run, number in numbers.items())
        figure.supxlabel(first_few(codes, 20, "\n"), x=0.01, ha="left", fontsize=7, color="#5d636c")
    return numbers


@lru_cache(maxsize=256)
def _fallbacks(missing: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names of installed fonts that have letters, each of more than the fonts before it; and the letters of none."""
    from matplotlib.font_manager import fontManager

    families = []
    entries = [entry for entry in fontManager.ttflist if entry.style == "normal" and entry.weight in (400, "normal")]
    for entry in sorted(entries, key=lambda entry: (entry.name, entry.fname)):
        letters = frozenset[str]() if entry.name.startswith(_NO_LETTERS) else missing & _letters_of(entry.fname)
        if letters:
            families.append(entry.name)
            missing -= letters
        if not missing:
            break
    return tuple(families), missing


@lru_cache(maxsize=8)
def _letters_of(file: str) -> frozenset[str]:
    """The letters that a font has; none if it cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(file)
        # matplotlib draws outlines, not the bitmaps of emoji fonts.
        return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


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
