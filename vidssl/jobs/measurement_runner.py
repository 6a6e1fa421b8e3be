"""The one runner of what measures networks: several of them, splits, reuse of results, lock, overlaps, files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from os.path import lexists
from pathlib import Path, PurePath
from statistics import mean, stdev
from typing import Any, ClassVar

from torch import nn
from typing_extensions import Self

from vidssl.base import distributed
from vidssl.base.atomic import csv_text, write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError
from vidssl.base.output_folder import check_file_names, claim, only_run_in
from vidssl.data.label_videos import describe_labels
from vidssl.data.list_identity import check_copies, identify
from vidssl.data.video_list import VideoList
from vidssl.engine.run_config import fill_split
from vidssl.evaluation.measure import need_gallery, need_labels
from vidssl.evaluation.result_files import Results, complete, complete_splits, existing_results, write_results
from vidssl.evaluation.train_test_overlap import report_equal_features
from vidssl.jobs.job import Model, NetworkOptions, Videos, file_of, path_of, read_videos
from vidssl.jobs.load_network import Subject, brings_config, class_hash, device_of, load_subject
from vidssl.models.external import is_external
from vidssl.page.section import format_table as format_table

BACKBONE = "features of the backbone"


def claim_results(
    out: Path, kind: str, inputs: Mapping[str, Path | str | None], read: Iterable[str | Path | None] = ()
) -> None:
    """Decide that results of a kind may be written to a folder, as `claim`; `read` are checkpoints and the like."""
    claim(out, kind, inputs=inputs, read=[None if path is None else Path(path) for path in read])


def format_videos(results: Results) -> str:
    """Format the number of tested videos, of each split if there are several: `58 of 60 (2 unreadable) videos`."""
    measured = list(results.get("splits", {}).values()) or [results]
    return ", ".join(format_count(part["num_videos"], part["missing"], "video") for part in measured)


def format_count(count: int, missing: Sequence[object], unit: str = "") -> str:
    """Format a count with its unit, and the total if some could not be read: `58 of 60 (2 unreadable)`."""
    text = f"{count} of {count + len(missing)} ({len(missing)} unreadable)" if missing else str(count)
    return f"{text} {unit}{'s' * (count + len(missing) != 1)}" if unit else text


def list_missing(missing: Iterable[tuple[str, str]]) -> list[Tree]:
    """Return path and reason of the videos that could not be read, as results state them."""
    return [{"path": path, "reason": reason} for path, reason in missing]


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


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]], separator: str = ",") -> None:
    """Write a CSV file atomically; with `;` for Excel where commas are decimal: with these, and a byte-order mark."""
    of_excel = separator == ";"
    if of_excel:
        rows = [[str(value).replace(".", ",") if isinstance(value, float) else value for value in row] for row in rows]
    write_whole(path, csv_text([header, *rows], separator).encode("utf-8-sig" if of_excel else "utf-8"))


class JobResults(Results):
    """What a job has measured: a dictionary as in `results.json`, whose text is the table that the command prints."""

    file: Path | None = None  # what the job wrote last, for a person to open
    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass
class Measurement:
    """A way to measure a network on a list of videos: subclasses have its settings, `of` adds what is measured."""

    kind: ClassVar[str]  # of the folder
    command: ClassVar[str]  # in the request
    compares: ClassVar[bool] = True  # tested videos with training videos, which must not be copies of them
    per_video: bool = field(default=False, kw_only=True)  # results also have what intervals are computed from
    subject: Subject = field(init=False, repr=False)
    query: VideoList = field(init=False, repr=False)
    train: VideoList | None = field(default=None, init=False, repr=False)  # the training videos, if they are used
    request: Tree = field(init=False, repr=False)  # what decides the results
    overlap: Tree = field(init=False, repr=False)  # of the tested videos with others
    labels: str = field(init=False, repr=False)  # what those of the tested videos are, in words

    def files(self) -> list[Path]:
        """Return the files that are read beside lists and networks: that of boxes, if there is one."""
        boxes = getattr(self, "boxes", None)
        return [] if boxes is None else [boxes]

    def options(self, options: NetworkOptions) -> NetworkOptions:
        """Return the options of a network with what this measurement decides."""
        return options

    @property
    def protocol_names(self) -> list[str] | None:
        """Names of the protocols, if there are any; None: the default ones."""
        choices = getattr(self, "protocols", None)
        return None if choices is None else [str(choice.get("name")) for choice in choices]

    def needs_training(self) -> bool:
        """Whether the list of training videos is read, if there is one."""
        return need_gallery(self.protocol_names)

    def needs_labels(self) -> bool:
        """Whether only rows with labels are measured, where some have one."""
        return need_labels(self.protocol_names)

    def check(self) -> Tree:
        """Check that network and lists can be measured; return what decides the numbers beside them and the clips."""
        raise NotImplementedError

    def measure(self) -> Results:
        """Return the numbers; once all videos are encoded, processes other than the main one may return nothing."""
        raise NotImplementedError

    def write(self, out: Path) -> None:
        """Write the files beside results.json."""

    def add(self, results: Results) -> Results:
        """Return results, new or existing ones, with what else is asked for."""
        return results

    def measure_network(self, arguments: dict[str, Any], out: Path | None) -> Results:
        """Measure one network, with the arguments of `load_measured`."""
        return load_measured(**arguments, out=out).results(out)

    def of(self, subject: Subject, query: VideoList, train: VideoList | None) -> Self:
        """Return this measurement of a network on its lists, once all fit each other."""
        measured = replace(self)
        measured.subject = subject if query.is_test_set else subject.skipping()
        measured.query, measured.train, measured.labels = query, train, describe_labels(query)
        if measured.needs_labels():
            measured.query, measured.train = query.labelled_rows(), None if train is None else train.labelled_rows()
        settings = measured.check()
        measured.request = distributed.on_main(lambda: measured._request(settings))
        return measured

    def _request(self, settings: Tree) -> Tree:
        """What decides the results; reads the size of each file."""
        data, train_data = identify(self.query), None
        if self.train is not None:
            train_data = identify(self.train)
            if self.compares:
                check_copies(self.train.path, train_data, self.query.path, data)
        return self.subject.request(
            command=self.command,
            list=self.query.fingerprint,
            classes=class_hash(self.query),
            data=data,
            train_list=None if self.train is None else self.train.fingerprint,
            train_data=train_data,
            **settings,
        )

    def results(self, out: Path | None, reuse: bool = True) -> Results:
        """Return the results of the request that exist; else measure, and write them."""
        with nullcontext() if out is None else only_run_in(out):
            results = None
            if out is not None:
                results = distributed.on_main(lambda: existing_results(out, self.request, reuse=reuse))
            if results is None:
                results = distributed.from_main(lambda: self._measured(out))
            whole = self.add(results)
            if out is not None and whole is not results:
                distributed.on_main(lambda: write_results(out, whole))
        return whole

    def _measured(self, out: Path | None) -> Results:
        query, train = self.query, self.train
        self.overlap = self.subject.count_overlap(query, train)
        numbers = {"labels": self.labels, **self.measure()}
        if not distributed.is_main():
            return {}
        report_equal_features(self.overlap, query.path)
        train_list, gallery = (None, None) if train is None else (str(train.path), train.fingerprint)
        content = {**numbers, "list": str(query.path), "train_list": train_list, **self.subject.describe()}
        lists = {"query": query.fingerprint, "gallery": gallery}
        results = complete(content, request=self.request, overlap=self.overlap, **lists)
        if out is not None:
            self.write(out)
            write_results(out, results)  # last: if it exists, the rest is complete
        return results


FormatNumbers = Callable[[Mapping[str, Results]], str]  # formats numbers, by the names of networks, as a short table
DrawPage = Callable[[Mapping[str, Results]], bytes]  # makes a page of them


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
    page: DrawPage | None = None,
) -> JobResults:
    """Measure networks, unless their results exist; return the results of each by its name.

    The folder of several networks has one for each, and that of several splits one for each split. `page` makes its
    index.html.
    """
    report = JobResults()
    shared = {"measurement": measurement, "videos": videos, "options": options, "train_list": train_list}
    _claim(out, measurement, models, videos, options, train_list)
    with distributed.joined(device_of(models[0], options)):
        for name, model, folder in name_networks(models, out):
            arguments: dict[str, Any] = {**shared, "model": model, "shared_config": len(models) > 1}
            if splits is None:
                report[name] = measurement.measure_network(arguments, folder)
            else:
                report[name] = _measure_splits(arguments, splits, folder)
        report.text = table(report)
        if out is not None:
            report.file = file = out / ("results.json" if page is None else "index.html")
            if page is not None:
                distributed.on_main(lambda: write_whole(file, page(report)))
    return report


def _claim(
    out: Path | None,
    measurement: Measurement,
    models: Sequence[Model],
    videos: Videos,
    options: NetworkOptions,
    train_list: Videos | None,
) -> None:
    if out is not None:
        lists = {"list": path_of(videos), "train_list": path_of(train_list)}
        claim_results(
            out,
            measurement.kind,
            lists,
            [*map(file_of, models), options.get("cfg"), options.get("labels"), *measurement.files()],
        )


def load_measured(
    measurement: Measurement,
    model: Model,
    videos: Videos,
    options: NetworkOptions,
    train_list: Videos | None = None,
    out: Path | None = None,
    shared_config: bool = False,
) -> Measurement:
    """Claim the folder, read the lists, load the network; return the measurement of these, once all fit each other.

    With `shared_config` the config of the options is for several networks.
    """
    _claim(out, measurement, [model], videos, options, train_list)
    if several := [path for path in (videos, train_list) if "{split}" in str(path)]:
        raise ConfigError(f"{several[0]} contains {{split}}; name the splits: splits=[1, 2, 3]")
    query, train = read_videos(videos, options), None
    if train_list is not None and measurement.needs_training():
        train = read_videos(train_list, options)
    subject = load_subject(model, measurement.options(options), shared_config=shared_config)
    return measurement.of(subject, query, train)


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


def _measure_splits(arguments: dict[str, Any], splits: Sequence[int], out: Path | None) -> Results:
    """Measure each split, whose number replaces `{split}` in the arguments of `load_measured`."""
    measurement, model, options = (arguments[name] for name in ("measurement", "model", "options"))
    if not any("{split}" in str(arguments[name]) for name in ("model", "videos", "train_list")):
        seeded = "{split}" in str(options.get("settings"))
        if not seeded or (arguments["shared_config"] and brings_config(model, options)):
            raise ConfigError("no list, checkpoint or setting contains {split}: all splits would be the same")
    settings = {part.name: getattr(measurement, part.name) for part in fields(measurement) if part.init}
    of_split: dict[int, dict[str, Any]] = {}
    for split in splits:
        of_split[split] = fill_split({**arguments, "measurement": settings}, split)
        of_split[split]["measurement"] = replace(measurement, **of_split[split]["measurement"])
        # Errors of all splits come before the first one is measured. It loads its network again: those of all may not
        # fit into memory at once.
        load_measured(**of_split[split])
    return over_splits(splits, out, lambda split, folder: load_measured(**of_split[split], out=folder).results(folder))


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
