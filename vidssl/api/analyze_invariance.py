"""How invariant networks are to transformations of a clip."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import Unpack

from vidssl import distributed
from vidssl.analysis.score_transformations import Measure, score_features, shuffled_scores
from vidssl.analysis.transformed_clips import TRANSFORMATIONS, Trajectories, choose_transformations
from vidssl.api.format_results import format_count, format_table, format_tests
from vidssl.api.job_arguments import Count, File, Model, NetworkOptions, Videos, job, models
from vidssl.api.measure_networks import Computed, JobResults, Measurement, Plan, measure_networks
from vidssl.api.measured_network import Subject, one_network
from vidssl.atomic import file_hash
from vidssl.config import Tree
from vidssl.data.instance_boxes import Boxes, read_instance_boxes
from vidssl.data.recording_groups import recording_groups
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.analysis_verdicts import SHUFFLES
from vidssl.evaluation.features import encode_videos
from vidssl.evaluation.result_files import Results
from vidssl.progress import Report
from vidssl.viz.charts import grouped_bars
from vidssl.viz.figure import png

COMPARED = ("unchanged", "shuffled")  # the baselines of the transformations


@job
def analyze_invariance(
    model: Model | Sequence[Model],
    videos: Videos,
    *,
    out: File | None = None,
    transformations: Sequence[str] | None = None,
    top_k: Count = 10,
    variant: Literal["class", "goodfellow"] = "class",
    population: Literal["all", "samples"] = "all",
    boxes: File | None = None,
    splits: Sequence[int] | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Measure how invariant networks are to transformations of the central square of a clip (or of `clips`).

    Args:
        model: One network or several, as in `test`.
        videos: The videos, with labels for the variant `class`.
        out: Folder for results.json and invariance.png.
        transformations: Default: all that apply of occlusion, viewpoint, rotation, illumination, colour, blur,
            instance, shift, gap, speed, reverse.
        top_k: Number of best units.
        variant: Thresholds, rates and best units per class, or for all videos together.
        population: Compute thresholds from clips and transformed clips, or from clips only.
        boxes: CSV file path,frame,x1,y1,x2,y2: the box of the instance in each frame.
        splits: Measure once per split, as 1 2 3; the number replaces `{split}` in paths and settings.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        The results of each network, by its name.
    """
    work = Invariance(transformations, top_k, variant, population, None if boxes is None else Path(boxes))
    folder, charted = None if out is None else Path(out), ("invariance.png", chart)
    return measure_networks(work, models(model), videos, options, folder, splits=splits, table=summary, chart=charted)


@dataclass(frozen=True)
class Invariance(Measurement, Measure):
    """The invariance of the units of a network."""

    kind: ClassVar[str] = "invariance"
    command: ClassVar[str] = "analyze invariance"

    def files(self) -> list[Path]:
        """Return the file of boxes."""
        return [] if self.boxes is None else [self.boxes]

    def options(self, options: NetworkOptions) -> NetworkOptions:
        """Measure the central square, of one clip unless there are more."""
        if options.get("crops") not in (None, 1):
            raise ConfigError(f"crops={options['crops']}: only the central square is measured; leave it out")
        return {**options, "clips": options.get("clips") or 1, "crops": 1}

    def plan(self, subject: Subject, query: VideoList, train: VideoList | None) -> Plan:
        """Choose the transformations."""
        test, units = one_network(subject).test, subject.encoder.dim
        labels = {*query.labels.tolist()}
        if self.variant == "class" and (-1 in labels or len(labels) < 2):
            raise DataError(
                f'variant="class" needs labels of two classes or more in {query.path}; or use variant="goodfellow"'
            )
        boxes = None if self.boxes is None else read_instance_boxes(self.boxes, query)
        if self.top_k > units:
            raise ConfigError(f"top_k={self.top_k} is more than the {units} units of {subject.name}")
        names, left_out = choose_transformations(self.transformations, test.clip.frames, boxes is not None)
        asked = {
            "variant": self.variant,
            "top_k": self.top_k,
            "population": self.population,
            "transformations": {name: TRANSFORMATIONS[name].amounts for name in names},
        }
        settings = json.loads(json.dumps(asked))  # as it is read from a file
        request = {"invariance": settings, "boxes": None if self.boxes is None else file_hash(self.boxes)}
        return Plan(request, partial(self._compute, subject, query, boxes, names, left_out, settings))

    def _compute(
        self,
        subject: Subject,
        query: VideoList,
        boxes: Mapping[str, Boxes] | None,
        names: tuple[str, ...],
        left_out: Mapping[str, str],
        settings: Tree,
    ) -> Computed:
        test = subject.test
        trajectories = Trajectories(test.clip, test.clips, test.size, names, test.short_side)
        dataset = trajectories.dataset(query, test, boxes, test.skips)
        # A video has as many versions of each clip as there are transformations.
        fewer = test.model_copy(update={"batch_size": max(1, test.batch_size // test.clips)})
        columns, missing = encode_videos(
            subject.encoder, dataset, fewer, subject.device, trajectories.encode, subject.name
        )
        features = trajectories.features(*columns)
        scores = distributed.on_main(lambda: score_features(features, trajectories, query, self))
        numbers, details, without = scores
        results: Results = {
            **numbers,
            "details": details,
            "left_out": {**left_out, **without},
            "num_videos": len({*features.index.tolist()}),
            "num_samples": len(features.x),
            "num_units": features.x.shape[1],
            "missing": [{"path": path, "reason": reason} for path, reason in missing],
            "boxes": None if self.boxes is None else str(self.boxes),
            "measure": settings,
        }
        if self.per_video and self.variant == "class":
            results["shuffles"] = distributed.on_main(
                lambda: shuffled_scores(features, query, self, recording_groups(query).number, SHUFFLES)
            )
        return Computed(results)


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw the scores of networks, one colour each, as PNG."""
    names = _measured(found)
    first = next(iter(found.values()))
    means = {label: results.get("mean", results) for label, results in found.items()}
    top, variant = first["measure"]["top_k"], first["measure"]["variant"]
    figure = grouped_bars(
        names,
        {label: [numbers.get(f"invariance_{name}") for name in names] for label, numbers in means.items()},
        title=f"Invariance of the {top} best units {'of each class' if variant == 'class' else 'of all'}: "
        f"{first['num_samples']} clips",
        unit="invariance score",
        levels={"1: ignores\nthe clip": 1.0, "perfect": first.get("mean", first)["invariance_ceiling"]},
        apart=COMPARED,
    )
    return png(figure)


def _measured(found: Mapping[str, Results]) -> list[str]:
    """The rows: transformations, baselines, and the mean if all networks have the same transformations."""
    own = [[name for name in TRANSFORMATIONS if f"invariance_{name}" in r.get("mean", r)] for r in found.values()]
    names = [name for name in TRANSFORMATIONS if any(name in names for names in own)]
    return [COMPARED[0], *names, *(["mean"] if all(names == own[0] for names in own) else []), COMPARED[1]]


def summary(found: Mapping[str, Results]) -> str:
    """Format the scores of networks as a short table."""
    first, names = next(iter(found.values())), _measured(found)
    splits = list(first.get("splits", {}).values())
    videos = ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in splits or [first])
    clips = "" if splits else f", {first['num_samples']} clips"
    head = (
        f"{videos}{clips}; {format_tests(found)}; the {first['measure']['top_k']} best of {first['num_units']} units; "
        f"1: a unit that ignores the clip, {first.get('mean', first)['invariance_ceiling']:.4g}: perfect"
    )
    head += f"; mean ± standard deviation of {len(splits)} splits" if len(splits) > 1 else ""
    rows = [[name, *(_cell(results, f"invariance_{name}") for results in found.values())] for name in names]
    lines = [head, *format_table([["", *found], *rows], "<" + ">" * len(found))]
    for label, results in found.items():
        of = f" of {label}" if len(found) > 1 else ""
        lines += [f"not measured{of}: {name} ({why})" for name, why in results["left_out"].items()]
    if "mean" not in names:
        lines.append("no mean: the networks were not measured with the same transformations")
    return "\n".join(lines)


def _cell(results: Results, name: str) -> str:
    mean, spread = results.get("mean", results).get(name), results.get("spread", {}).get(name)
    if mean is None:
        return "–"
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"
