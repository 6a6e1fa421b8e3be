"""Regions that are followed through videos: proposals, the tracker, and whole lists of videos."""

from vidssl.tracking.proposals import Search, propose
from vidssl.tracking.tracker import TrackerSettings, no_tracks, track_video
from vidssl.tracking.videos import Tracked, track_list

__all__ = ["Search", "Tracked", "TrackerSettings", "no_tracks", "propose", "track_list", "track_video"]
