"""The gallery of a retrieval: features of a list, of its windows, or of an index, and the search in them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from vidssl import distributed
from vidssl.api.extract import extract_to, open_index, windows_of
from vidssl.api.job_arguments import File
from vidssl.api.measured_network import Subject
from vidssl.config import Tree
from vidssl.data.cut_windows import TimeWindows
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.video_list import VideoList
from vidssl.evaluation.nearest_moments import nearest_moments
from vidssl.evaluation.search import Neighbours, nearest
from vidssl.types import Features


@dataclass(frozen=True)
class Gallery:
    """What is searched: features, and the videos of their rows."""

    features: Features
    videos: Callable[[Sequence[int]], VideoList]  # of some rows of the features
    windows: Tree | None = None  # window and stride in seconds, if the rows are windows of videos
    one_per_video: bool = False
    list: str = ""  # fingerprint of the list
    data: Tree = field(default_factory=dict)  # its files, as in `identify`

    def search(self, query: Tensor, k: int, exclude: Tensor, center: bool = False) -> Neighbours:
        """Find the nearest rows; in windows, the nearest moments."""
        if self.windows is None and not self.one_per_video:
            return nearest(query, self.features.x, k, exclude, center=center)
        x, one = self.features.x, self.one_per_video
        return nearest_moments(
            query, x, lambda rows: self.videos(rows).records, k, exclude, center=center, one_per_video=one
        )


def load_gallery(
    subject: Subject,
    listed: VideoList | None,
    index: Path | None,
    root: File | None,
    query: tuple[Path, Tree],
    windows: TimeWindows | None,
    one_per_video: bool,
) -> Gallery | None:
    """Load the gallery's features from the index, which is created if it does not exist, or extract them.

    `query` is its path and what `identify` returned for it. Without `listed` the gallery is all of the index. Other
    processes than the main one, which searches, get none of an index.
    """
    data: Tree = {}
    if listed is not None:
        data = distributed.on_main(lambda: identify(listed))
        check_copies(listed.path, data, *query)
    if index is None:
        assert listed is not None
        rows_of = listed if windows is None else windows_of(listed, windows, subject.test)
        features = subject.extract(rows_of, "gallery")
        order = features.index
        seconds = None if windows is None else asdict(windows)

        def chosen(rows: Sequence[int]) -> VideoList:
            return rows_of.rows(order[[*rows]].tolist())

        return Gallery(features, chosen, seconds, one_per_video, listed.fingerprint, data)
    if listed is not None:
        extract_to(subject, listed, data, index, title="gallery", windows=windows)
    # Not `on_main`, which would send the gallery to all processes.
    return distributed.together(
        lambda: _open(subject, index, listed, root, query, one_per_video) if distributed.is_main() else None
    )


def _open(
    subject: Subject,
    index: Path,
    listed: VideoList | None,
    root: File | None,
    query: tuple[Path, Tree],
    one_per_video: bool,
) -> Gallery:
    folder = open_index(index, subject)
    check_copies(index, folder.request["data"], *query)
    seconds, order = folder.request.get("windows"), folder.features.index

    def videos(rows: Sequence[int]) -> VideoList:
        if listed is None or seconds is not None:
            place = root if listed is None else listed.root
            return folder.videos(rows, None if place is None else Path(place))
        return listed.rows(order[list(rows)].tolist())

    described = folder.request["list"], folder.request["data"]
    return Gallery(folder.features, videos, seconds, one_per_video, *described)
