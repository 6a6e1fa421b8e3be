"""The videos of a map that a person should look at: outliers, near-duplicates, probable wrong labels."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vidssl.config import Tree
from vidssl.data.recording_groups import labelled_by_folders, recording_groups, why_folders_are_no_classes
from vidssl.data.video_list import VideoList
from vidssl.evaluation.search import Neighbours
from vidssl.evaluation.suspects import find_near_duplicates, find_outliers, mean_distances, score_labels
from vidssl.viz.map_page import Suspects

MOST_LABELS = 20_000  # videos whose labels are judged: the time of the regressions grows with them
_SHOWN = 200  # of a kind on the page


@dataclass(frozen=True)
class SuspectVideos:
    """What was found, by rows of the list."""

    outliers: list[tuple[int, float]]  # row, mean cosine distance to its neighbours
    duplicates: list[tuple[int, int, float]]  # rows, cosine similarity
    labels: list[tuple[int, str, str, float]]  # row, label, proposed label, margin
    reason: str  # why no labels were judged; empty: they were

    def results(self, names: Sequence[str]) -> Tree:
        """Describe all of them for results.json."""
        return {
            "outliers": [{"path": names[row], "distance": value} for row, value in self.outliers],
            "near_duplicates": [
                {"paths": [names[one], names[other]], "similarity": value} for one, other, value in self.duplicates
            ],
            "wrong_labels": [
                {"path": names[row], "label": label, "proposed": proposed, "margin": margin}
                for row, label, proposed, margin in self.labels
            ],
            "reason": self.reason,
        }

    def sections(self, names: Sequence[str]) -> list[Suspects]:
        """Describe those that the page lists."""
        return [
            Suspects(
                "Probable wrong labels",
                [(row, f"{label}: perhaps {proposed}") for row, label, proposed, _ in self.labels[:_SHOWN]],
                len(self.labels),
            ),
            Suspects(
                "Near-duplicates",
                [(one, f"as {names[other]}, similarity {value:.3f}") for one, other, value in self.duplicates[:_SHOWN]],
                len(self.duplicates),
            ),
            Suspects(
                "Outliers",
                [(row, f"mean distance {value:.3f}") for row, value in self.outliers[:_SHOWN]],
                len(self.outliers),
            ),
        ]


def find_suspects(videos: VideoList, x: Tensor, near: Neighbours) -> SuspectVideos:
    """Find the suspects of a list with features (N, D) and their neighbours; without labels folders are labels."""
    distance = mean_distances(near)
    outliers = [(int(row), float(distance[row])) for row in find_outliers(near)]
    listed, labels, reason = labelled_by_folders(videos), [], ""
    if (listed.labels < 0).all():
        reason = why_folders_are_no_classes(videos) or "no labels, and no folders of two videos or more"
    elif len(videos) > MOST_LABELS:
        reason = f"more than {MOST_LABELS:,} videos"
    else:
        scores = score_labels(x, listed.labels, recording_groups(listed).number)
        for row in scores.suspects:
            label, proposed = (listed.class_name(int(one)) for one in (listed.labels[row], scores.proposed[row]))
            labels.append((int(row), label, proposed, float(scores.margin[row])))
    return SuspectVideos(outliers, find_near_duplicates(near), labels, reason)
