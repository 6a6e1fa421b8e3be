"""Tracking of regions through videos: proposals, the tracker, and whole lists of videos."""

from vidssl.tracking.proposals import Search, propose
from vidssl.tracking.track_videos import Tracked, check_tracking, join_parts, track_list
from vidssl.tracking.tracker import Tracker, TrackerSettings, no_tracks

__all__ = [
    "Search",
    "Tracked",
    "Tracker",
    "TrackerSettings",
    "check_tracking",
    "join_parts",
    "no_tracks",
    "propose",
    "track_list",
]
