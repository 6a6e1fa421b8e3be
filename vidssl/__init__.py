"""Self-supervised learning of video representations: videos in, a backbone, its features and its accuracies out."""

__version__ = "0.1.0"

from vidssl.data import open_video
from vidssl.models import build_backbone, load_backbone

__all__ = ["build_backbone", "load_backbone", "open_video"]
