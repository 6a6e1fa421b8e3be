"""Video files to exact frames: open a video, read its metadata, decode frames by number."""

from vidssl.video.reader import Video, open_video

__all__ = ["Video", "open_video"]
