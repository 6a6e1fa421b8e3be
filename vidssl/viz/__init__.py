"""Pictures for people: pages for a browser, tables, training curves, and sheets of frames."""

from vidssl.viz.confusion import confusion_picture
from vidssl.viz.curves import curves_figure, training_curves
from vidssl.viz.page import (
    Hit,
    Preview,
    QueryRow,
    preview,
    write_compare_page,
    write_retrieval_page,
)
from vidssl.viz.sheets import Shot, contact_sheet, retrieval_sheet, write_png

__all__ = [
    "Hit",
    "Preview",
    "QueryRow",
    "Shot",
    "confusion_picture",
    "contact_sheet",
    "curves_figure",
    "preview",
    "retrieval_sheet",
    "training_curves",
    "write_compare_page",
    "write_png",
    "write_retrieval_page",
]
