"""The one runner of what measures networks: several of them, splits, reuse of results, lock, overlaps, files."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os.path import lexists
from pathlib import Path, PurePath
from statistics import mean, stdev
from typing import Any, ClassVar, NamedTuple

from torch import nn

from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError
from vidssl.base.output_folder import check_file_names, claim, only_run_in
from vidssl.data.list_identity import check_copies, identify
from vidssl.data.video_list import VideoList
from vidssl.engine.run_config import fill_split
from vidssl.evaluation.result_files import Results, complete, complete_splits, existing_results, write_results
from vidssl.evaluation.train_test_overlap import report_equal_features
from vidssl.jobs.job import Model, NetworkOptions, Videos, file_of, path_of, read_videos
from vidssl.jobs.load_network import Subject, brings_config, class_hash, device_of, load_subject
from vidssl.models.external import is_external
from vidssl.page.section import format_table as format_table

BACKBONE = "features of the backbone"


def claim_results(
    out: Path, kind: str, inputs: Mapping[str, Path | None], read: Iterable[str | Path | None] = ()
) -> None:
    """Decide that results of a kind may be written to a folder, as `claim`; `read` are checkpoints and the like."""
    claim(out, kind, inputs=inputs, read=[None if path is None else Path(path) for path in read])


def format_videos(results: Results) -> str:
    """Format the number of tested videos, of each split if there are several: `58 of 60 (2 missing) videos`."""
    measured = list(results.get("splits", {}).values()) or [results]
    return ", ".join(f"{format_count(part['num_videos'], part['missing'])} videos" for part in measured)


def format_count(count: int, missing: Sequence[object]) -> str:
    """Format a count, with the total if some are missing: `58 of 60 (2 missing)`."""
    return f"{count} of {count + len(missing)} ({len(missing)} missing)" if missing else str(count)


def spread_of(name: str, results: Results) -> float | None:
    """Return the standard deviation of a number over splits, else over draws; None: it has none."""
    spread: float | None = results["spread"].get(name) if "spread" in results else results.get(f"{name}_spread")
    return spread


def format_number(name: str, results: Results, cell: Callable[[str, float], str]) -> str:
    """Format a number, or its mean over splits, with its spread, by `cell`; `–`: it was not measured."""
    number, spread = results.get("mean", results).get(name), spread_of(name, results)
    if number is None:
        return "–"
    return cell(name, number) + ("" if spread is None else f" ± {cell(name, spread)}")


def format_clips(test: Tree) -> str:
    """Format the views of a video, of the settings of a test: `4 clips x 1 crop of 64²`.

    Features that are not those of the whole backbone are named; several networks have their own views.
    """
    if "parts" in test:
        return " + ".join(dict.fromkeys(map(format_clips, test["parts"])))
    parts = [f"{test[name]} {name.removesuffix('s') if test[name] == 1 else name}" for name in ("clips", "crops")]
    features = format_features(test)
    return f"{' x '.join(parts)} of {test['size']}²" + (f", {features}" if features != BACKBONE else "")


def format_features(test: Tree) -> str:
    """Name the features that a test uses: those of the backbone or of a stream, or the maps of a layer."""
    stream, layer = test.get("stream"), test.get("layer")
    if test.get("join") == "order":
        return f"{format_features({**test, 'join': 'mean'})}, clips in order".removeprefix(f"{BACKBONE}, ")
    if layer is None:
        return BACKBONE if stream is None else f"features of the stream {stream}"
    maps = layer if stream is None else f"{stream}.{layer}"
    return f"maps of {maps}, {test['grid']} x {test['grid']} x {test['grid_frames']} cells"


def format_tests(networks: Mapping[str, Results]) -> str:
    """Format the views of a video in the results of networks, by name: once if they are equal, else for each."""
    clips = {name: format_clips(results["protocol"]) for name, results in networks.items()}
    if len({*clips.values()}) == 1:
        return next(iter(clips.values()))
    return ", ".join(f"{name} {text}" for name, text in clips.items())


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_whole(path, text.getvalue().encode())


class JobResults(Results):
    """What a job has measured: a dictionary as in `results.json`, whose text is the table that the command prints."""

    file: Path | None = None  # what the job wrote last, for a person to open
    text: str = ""

    def __str__(self) -> str:
        return self.text


class Computed(NamedTuple):
    """The numbers of a network."""

    results: Results
    write: Callable[[Path], None] = lambda out: None  # the files beside results.json; on the main process
    equal_features: int | None = None  # tested videos with the features of a training video; None: not counted


class Plan(NamedTuple):
    """What a measurement is going to do, once all arguments fit each other."""

    request: Tree  # what decides the numbers beside network, clips and lists
    compute: Callable[[], Computed]
    train: VideoList | None = None  # the training videos, if they are used
    floors: Callable[[], Results] | None = None  # also measures `floors`, if the results, new or existing, lack them


@dataclass(frozen=True)
class Measurement:
    """A way to measure a network on a list of videos; subclasses have its settings."""

    kind: ClassVar[str]  # of the folder
    command: ClassVar[str]  # in the request
    per_video: bool = field(default=False, kw_only=True)  # results also have what intervals are computed from

    def files(self) -> list[Path]:
        """Return the files that are read beside lists and networks: that of boxes, if there is one."""
        boxes = getattr(self, "boxes", None)
        return [] if boxes is None else [boxes]

    def options(self, options: NetworkOptions) -> NetworkOptions:
        """Return the options of a network with what this measurement decides."""
        return options

    def needs_training(self) -> bool:
        """Whether the list of training videos is read, if there is one."""
        return True

    def plan(self, subject: Subject, query: VideoList, train: VideoList | None) -> Plan:
        """Check that network and lists can be measured, and return what is to be done."""
        raise NotImplementedError


FormatNumbers = Callable[[Mapping[str, Results]], str]  # formats numbers, by the names of networks, as a short table
DrawChart = Callable[[Mapping[str, Results]], bytes]  # draws them, as PNG


def measure_networks(
    measurement: Measurement,
    models: Sequence[Model],
    videos: Videos,
    options: NetworkOptions,
    out: Path | None,
    train_list: Videos | None = None,
    splits: Sequence[int] | None = None,
    *,
    table: FormatNumbers,
    chart: tuple[str, DrawChart] | None = None,
) -> JobResults:
    """Measure networks, unless their results exist; return the results of each by its name.

    The folder of several networks has one for each, and that of several splits one for each split. `chart` is the name
    of a file there, and what draws it.
    """
    lists = {"list": path_of(videos), "train_list": path_of(train_list)}
    if out is not None:
        claim_results(out, measurement.kind, lists, [*map(file_of, models), options.get("cfg"), *measurement.files()])
    report, several = JobResults(), len(models) > 1
    with distributed.joined(device_of(models[0], options)):
        for name, model, folder in name_networks(models, out):
            work = Work(measurement, model, videos, options, train_list, several)
            report[name] = work.measure(folder) if splits is None else work.over_splits(splits, folder)
        report.text = table(report)
        if out is not None:
            name, draw = chart or ("results.json", None)
            report.file = file = out / name
            if draw is not None:
                distributed.on_main(lambda: write_whole(file, draw(report)))
    return report


@dataclass(frozen=True)
class Work:
    """A measurement of one network."""

    measurement: Measurement
    model: Model
    videos: Videos
    options: NetworkOptions
    train_list: Videos | None = None
    shared_config: bool = False  # the config of the options is for several networks

    def prepare(self) -> "Prepared":
        """Read the lists and load the network."""
        several = [path for path in (self.videos, self.train_list) if "{split}" in str(path)]
        if several:
            raise ConfigError(f"{several[0]} contains {{split}}; name the splits: splits=[1, 2, 3]")
        query = read_videos(self.videos, self.options)
        train = None
        if self.train_list is not None and self.measurement.needs_training():
            train = read_videos(self.train_list, self.options)
        options = self.measurement.options(self.options)
        subject = load_subject(self.model, options, shared_config=self.shared_config)
        return prepare(self.measurement, subject, query, train)

    def measure(self, out: Path | None) -> Results:
        """Measure the network."""
        if out is not None:
            lists = {"list": path_of(self.videos), "train_list": path_of(self.train_list)}
            files = [file_of(self.model), self.options.get("cfg"), *self.measurement.files()]
            claim_results(out, self.measurement.kind, lists, files)
        return self.prepare().measure(out)

    def over_splits(self, splits: Sequence[int], out: Path | None) -> Results:
        """Measure each split, whose number replaces `{split}` in all arguments; errors come before the first one."""
        if not self._depends_on_split():
            raise ConfigError("no list, checkpoint or setting contains {split}: all splits would be the same")
        of_split = {split: self._fill(split) for split in splits}
        for work in of_split.values():
            work.prepare()  # and again when it is measured: networks of all splits may not fit into memory at once
        return over_splits(splits, out, lambda split, folder: of_split[split].measure(folder))

    def _depends_on_split(self) -> bool:
        if any("{split}" in str(argument) for argument in (self.videos, self.model, self.train_list)):
            return True
        seeded = "{split}" in str(self.options.get("settings"))
        return seeded and not (self.shared_config and brings_config(self.model, self.options))

    def _fill(self, split: int) -> "Work":
        filled: dict[str, Any] = fill_split(vars(self) | {"measurement": vars(self.measurement)}, split)
        return Work(**filled | {"measurement": replace(self.measurement, **filled["measurement"])})


class Prepared(NamedTuple):
    """A network, its lists, and what is to be done with them."""

    measurement: Measurement
    subject: Subject
    query: VideoList
    plan: Plan
    request: Tree

    def measure(self, out: Path | None, reuse: bool = True) -> Results:
        """Return the results of the request that exist; else measure, and write them."""
        with ExitStack() as stack:
            results = None
            if out is not None:
                stack.enter_context(only_run_in(out))
                results = distributed.on_main(lambda: existing_results(out, self.request, reuse=reuse))
            if results is None:
                results = self._measure(out)
            if self.plan.floors is None or "floors" in results:
                return results
            whole = {**results, **self.plan.floors()}
            if out is not None:
                distributed.on_main(lambda: write_results(out, whole))
        return whole

    def _measure(self, out: Path | None) -> Results:
        overlap = self.subject.count_overlap(self.query, self.plan.train)
        computed = self.plan.compute()
        if overlap["gallery"] and computed.equal_features is not None:
            overlap["gallery"]["equal_features"] = computed.equal_features
            distributed.on_main(lambda: report_equal_features(overlap, self.query.path))
        train = self.plan.train
        content = {
            **computed.results,
            "list": str(self.query.path),
            "train_list": None if train is None else str(train.path),
            **self.subject.describe(),
        }
        lists = {"query": self.query.fingerprint, "gallery": None if train is None else train.fingerprint}
        results = complete(content, request=self.request, overlap=overlap, **lists)
        if out is not None:
            distributed.on_main(lambda: computed.write(out))
            distributed.on_main(lambda: write_results(out, results))  # last: if it exists, the rest is complete
        return results


def prepare(measurement: Measurement, subject: Subject, query: VideoList, train: VideoList | None) -> Prepared:
    """Check that a network and its lists can be measured."""
    if not query.is_labelled:
        subject = subject.skipping_few()
    plan = measurement.plan(subject, query, train)
    request = distributed.on_main(lambda: _request(measurement, subject, query, plan))
    return Prepared(measurement, subject, query, plan, request)


def _request(measurement: Measurement, subject: Subject, query: VideoList, plan: Plan) -> Tree:
    """What decides the results; reads the size of each file."""
    data, train, train_data = identify(query), plan.train, None
    if train is not None:
        train_data = identify(train)
        check_copies(train.path, train_data, query.path, data)
    return subject.request(
        command=measurement.command,
        list=query.fingerprint,
        classes=class_hash(query),
        data=data,
        train_list=None if train is None else train.fingerprint,
        train_data=train_data,
        **plan.request,
    )


def name_networks(models: Sequence[Model], out: Path | None) -> list[tuple[str, Model, Path | None]]:
    """Names, models and folders: the names are the ends of the paths that differ, `a/checkpoints/last.pt` is a."""
    paths = [type(model).__name__ if isinstance(model, nn.Module) else str(model) for model in models]
    for depth in range(1, max(len(PurePath(path).parts) for path in paths) + 1):
        names = ["+".join(_end(part, depth) for part in path.split("+")) for path in paths]
        if len({*names}) == len(names):
            if out is None or len(names) == 1:
                return [(name, model, out) for name, model in zip(names, models, strict=True)]
            check_file_names(out, [f"{name}/results.json" for name in names])
            return [(name, model, out / name) for name, model in zip(names, models, strict=True)]
    raise ConfigError(f"model names a network twice: {', '.join(paths)}")


def _end(part: str, depth: int) -> str:
    """Shorten the path of a network, `[WEIGHT*]PATH[#STREAM]`, to the last folders that say something."""
    weight, star, name = ("", "", part) if lexists(part) else part.rpartition("*")
    name, mark, stream = (name, "", "") if lexists(name) else name.partition("#")
    if not is_external(name):
        path = PurePath(name)
        folders = (path.with_suffix("") if path.suffix[1:].isalpha() else path).parts  # not of run_0.5
        telling = [folder for folder in folders if folder not in ("checkpoints", "last", "..", "/", "split{split}")]
        name = "-".join(telling[-depth:]) or name
    return f"{weight}{star}{name}{mark}{stream}"


# Splits -----------------------------------------------------------------------------------------------------

# What each split has its own of, beside numbers.
_LISTS = ("num_videos", "num_train", "missing", "missing_train", "list", "train_list")
_PER_SPLIT = (*_LISTS, "checkpoint", "details", "floors", "floors_details")


def over_splits(splits: Sequence[int], out: Path | None, measure: Callable[[int, Path | None], Results]) -> Results:
    """Run `measure` for each split in `out/splitN`; write all numbers, mean and spread to `out/results.json`.

    It holds `splits` (what differs between them), `mean` and `spread`, of floors that all splits have too, and the rest
    from the results of the first split.
    """
    if out is not None:
        check_file_names(out, [f"split{split}/results.json" for split in splits])
    of_split = {split: measure(split, None if out is None else out / f"split{split}") for split in splits}
    first, every = of_split[splits[0]], [*of_split.values()]
    results = {
        "splits": {str(split): dict(filter(_is_of_split, results.items())) for split, results in of_split.items()},
        **_mean_and_spread(every),
        **{name: value for name, value in first.items() if not _is_of_split((name, value))},
    }
    if all("floors" in split for split in every):
        results["floors"] = {
            name: _mean_and_spread([split["floors"][name] for split in every]) for name in first["floors"]
        }
    results = complete_splits(results, {str(split): measured for split, measured in of_split.items()})
    if out is not None:
        distributed.on_main(lambda: write_results(out, results))
    return results


def _is_of_split(item: tuple[str, Any]) -> bool:
    return isinstance(item[1], float) or item[0] in _PER_SPLIT


def _mean_and_spread(of_splits: Sequence[Results]) -> Tree:
    """Return `mean` and `spread` (standard deviation, n - 1; empty for a single split) of the numbers that all have."""
    names = [n for n, v in of_splits[0].items() if isinstance(v, float) and all(n in results for results in of_splits)]
    columns = {name: [results[name] for results in of_splits] for name in names}
    spread = {name: stdev(column) for name, column in columns.items()} if len(of_splits) > 1 else {}
    return {"mean": {name: mean(column) for name, column in columns.items()}, "spread": spread}
