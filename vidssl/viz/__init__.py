"""Pictures for people: pages that play in a browser, training curves, and sheets of frames."""

from vidssl.viz.curves import curves_figure, training_curves
from vidssl.viz.page import Hit, Preview, QueryRow, preview, write_report_page, write_retrieval_page
from vidssl.viz.sheets import Shot, contact_sheet, retrieval_sheet, write_png

__all__ = [
    "Hit",
    "Preview",
    "QueryRow",
    "Shot",
    "contact_sheet",
    "curves_figure",
    "preview",
    "retrieval_sheet",
    "training_curves",
    "write_png",
    "write_report_page",
    "write_retrieval_page",
]
