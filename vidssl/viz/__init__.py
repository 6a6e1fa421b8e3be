"""Pages for a browser, charts, and images of videos."""

from vidssl.viz.confusion import confusion_picture
from vidssl.viz.curves import training_curves
from vidssl.viz.pages import Hit, Preview, QueryRow, preview, write_compare_page, write_retrieval_page
from vidssl.viz.retrieval_sheet import Shot, retrieval_sheet

__all__ = [
    "Hit",
    "Preview",
    "QueryRow",
    "Shot",
    "confusion_picture",
    "preview",
    "retrieval_sheet",
    "training_curves",
    "write_compare_page",
    "write_retrieval_page",
]
