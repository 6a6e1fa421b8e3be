"""What results of networks are evidence for: numbers with intervals over recordings, and differences of networks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vidssl.apps.analysis.verdicts import AnalysisVerdict, ScoreSample, ScoreTest
from vidssl.data.recordings_and_class_folders import of_several_recordings
from vidssl.evaluation.metrics import majority
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.statistics import Beside, Estimate, Floats, beside, proportion
from vidssl.jobs.measurement_runner import format_tests, format_videos, spread_of
from vidssl.page.section import Point, Quantity, Section

TRAINED, UNTRAINED = "trained", "untrained"  # names of networks on the page of all analyses
MEASURES = {"R@1": "R@1", "knn": "kNN", "top1": "classifier"}  # accuracies that analyses compare
_PRIMARY = ("R@1", "top1", "knn")  # the number that verdicts are about: the first that was measured
_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Evidence:
    """The results of networks of one analysis; verdicts are about the first of them.

    With the recordings and labels of the rows of the list, numbers with values of each video have intervals.
    """

    networks: Mapping[str, Results]
    recordings: NDArray[np.int64] = field(default_factory=_NO_ROWS.copy)
    labels: NDArray[np.int64] = field(default_factory=_NO_ROWS.copy)

    @property
    def first(self) -> Results:
        """The results of the first network."""
        return next(iter(self.networks.values()))

    @property
    def sample(self) -> ScoreSample:
        """Videos and recordings that were measured."""
        rows = self.first.get("per_video", {}).get("rows", range(len(self.labels)))
        return ScoreSample(self.first["num_videos"], len(np.unique(self.recordings[[*rows]])))

    @property
    def setting(self) -> str:
        """What was measured: videos and clips."""
        train, splits = self.first.get("num_train"), len(self.first.get("splits", {}))
        parts = [format_videos(self.first), format_tests(self.networks)]
        parts += [f"{train} training videos"] if train else []
        return "; ".join([*parts, *([f"mean ± standard deviation of {splits} splits"] if splits > 1 else [])])

    @property
    def left_out(self) -> list[str]:
        """What was not measured, and why."""
        several = len(self.networks) > 1
        return [
            f"not measured{f' of {network}' * several}: {name} ({why})"
            for network, results in self.networks.items()
            for name, why in results["left_out"].items()
        ]

    @property
    def measures(self) -> dict[str, str]:
        """The accuracies that were measured, and their names."""
        every = [results.get("mean", results) for results in self.networks.values()]
        return {key: name for key, name in MEASURES.items() if any(key in numbers for numbers in every)}

    @property
    def primary(self) -> str | None:
        """The number that the verdict is about; None: no number has values of each video."""
        if not len(self.recordings):
            return None
        return next((key for key in _PRIMARY if key in self.first.get("per_video", {})), None)

    def values(self, key: str, network: str) -> Floats | None:
        """Return a number of each video of the list, nan where it was not measured; None: it has none."""
        per_video = self.networks[network].get("per_video", {})
        if key not in per_video or not len(self.recordings):
            return None
        values = np.full(len(self.recordings), np.nan)
        values[per_video["rows"]] = per_video[key]
        return values

    def estimate(self, key: str, network: str | None = None) -> Estimate | None:
        """Estimate a number of a network, by default the first; without values of each video it has no interval."""
        name = next(iter(self.networks)) if network is None else network
        values, results = self.values(key, name), self.networks[name]
        if values is not None:
            rows = np.flatnonzero(np.isfinite(values))
            return proportion(values[rows], self.recordings[rows])
        if key in (estimates := results.get("estimates", {})):  # of numbers that are no means over videos
            estimate: Estimate = estimates[key]
            return estimate
        number = results.get("mean", results).get(key)
        return None if number is None else Estimate(number)

    def points(self, key: str) -> dict[str, Point]:
        """Return a number of the networks that have it."""
        points = {}
        for network, results in self.networks.items():
            estimate = self.estimate(key, network)
            if estimate is not None:
                points[network] = Point(*estimate[:3], spread_of(key, results))
        return points

    def quantity(
        self,
        title: str,
        keys: Mapping[str, str],
        levels: Mapping[str, float] | None = None,
        percent: bool = True,
        drawn: bool = True,
    ) -> Quantity:
        """Return numbers of all networks, whose keys are by the names of the rows."""
        rows = {name: points for name, key in keys.items() if (points := self.points(key))}
        besides = {name: self.beside(keys[name]) for name in rows}
        differences = {name: Point(*pair.difference[:3]) for name, pair in besides.items() if pair is not None}
        digits = 1 if percent else 2
        return Quantity(title, rows, levels or {}, differences, percent, digits, drawn=drawn)

    @property
    def levels(self) -> dict[str, float]:
        """What the most frequent class as the answer for all videos reaches."""
        numbers = self.first.get("mean", self.first)
        if "majority" in numbers or "per_video" not in self.first:
            return {key: numbers[key] for key in ("majority", "majority_mean_class") if key in numbers}
        return majority(torch.from_numpy(self.labels[self.first["per_video"]["rows"]]))

    def gap(self, first: str, second: str) -> Estimate:
        """Estimate the first number of the first network minus its second one."""
        name = next(iter(self.networks))
        a, b = self.values(first, name), self.values(second, name)
        assert a is not None and b is not None
        return beside(a, b, self.recordings).difference

    @property
    def classes(self) -> NDArray[np.int64]:
        """The classes that a mean over classes is of, -1 for other videos: those of two recordings or more.

        If most videos are of other classes, or all of one, all count alike, as of one class.
        """
        rows = self.first["per_video"]["rows"]
        several = of_several_recordings(self.labels[rows], self.recordings[rows])
        classes = np.full_like(self.labels, -1)
        classes[rows] = np.where(several, self.labels[rows], -1)
        return classes if several.mean() > 0.5 and len({*classes.tolist()} - {-1}) > 1 else np.zeros_like(self.labels)

    def score(self, key: str, network: str | None = None) -> ScoreTest:
        """Estimate the mean over `classes` of an accuracy."""
        values, classes = self.values(key, network or next(iter(self.networks))), self.classes
        assert values is not None
        rows = np.flatnonzero(np.isfinite(values) & (classes >= 0))
        right = proportion(values[rows], self.recordings[rows], classes[rows])
        if not classes.any():
            return ScoreTest(right, self.levels["majority"], "where the most frequent class gives", exact=False)
        return ScoreTest(right, 1 / len({*classes[rows].tolist()}), "as a mean over classes, where 1 / classes is")

    def beside(self, first: str, second: str | None = None, by_class: bool = False) -> Beside | None:
        """Compare a number, or the first minus the second, with that of the second network; None without that.

        With `by_class` the number is a mean over `classes`.
        """
        if len(self.networks) != 2:
            return None
        of_networks: list[Floats] = []
        for network in self.networks:
            parts = [self.values(key, network) for key in (first, second) if key is not None]
            if any(values is None for values in parts):
                return None
            of_networks.append(parts[0] if second is None else parts[0] - parts[1])  # type: ignore[operator, arg-type]
        classes = self.classes if by_class else np.zeros_like(self.labels)
        rows = classes >= 0
        return beside(of_networks[0][rows], of_networks[1][rows], self.recordings[rows], classes[rows])

    def section(
        self,
        header: Section,
        quantities: Sequence[Quantity],
        said: AnalysisVerdict | None = None,
        notes: Sequence[str] = (),
        **parts: Any,
    ) -> Section:
        """Make the section of a header: what was measured, the quantities that have numbers, and what they say."""
        kept = [quantity for quantity in quantities if quantity.rows]
        parts = {"setting": self.setting, **parts} | ({} if said is None else said._asdict())
        return replace(header, quantities=kept, notes=[*notes], **parts)
