"""`extract`, `check`, `shrink` and `track` on a Ray cluster: `python -m vidssl.apps.cluster.commands_on_ray COMMAND …`.

The command runs on this machine. What it does for each video or part of the list runs on the cluster, by the same
functions: Ray Data maps their numbers over actors (https://docs.ray.io/en/latest/data/data.html). So the files equal
those of the command without Ray, on CPUs bit by bit if as many threads compute. All machines need the same versions,
and the list, the videos and the output under the same paths.
"""

import argparse
import logging
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from vidssl.base.command_line_and_notices import running
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, VidsslError
from vidssl.base.progress import progress
from vidssl.base.types import Features
from vidssl.base.worker_pool import ItemGuard, Result, Task, ordered
from vidssl.cli import Job, errors_in_options, guarded, parser_of, print_result
from vidssl.cli.options_from_signatures import Parser, above_zero, at_least, parse
from vidssl.data.video_list import VideoList
from vidssl.evaluation import features
from vidssl.jobs.load_network import Subject
from vidssl.tracking import Tracked, Tracker, join_parts, track_list
from vidssl.version import __version__

_VIDEOS = 16  # fewest videos of a part, which is done again if its actor is lost
_MOST = 1000  # parts of a list
_FILES = 32  # most files that an actor gets at a time
_VERSIONS = {"vidssl": __version__, "torch": str(torch.__version__)}


@dataclass(frozen=True)
class Actors:
    """Processes of a Ray cluster: `pool`, `extract` and `track` do the work of the commands."""

    count: int  # at most
    cpus: int  # of each
    gpus: float

    def run(self, work: Callable[[list[int]], Iterable[Any]], count: int, together: int = 1) -> Iterator[Any]:
        """Yield the results of the tasks 0, 1, …, which `work` does, `together` in a call, in their order.

        The tasks of an actor that is lost are done again. A VidsslError is raised at the turn of its task.
        """
        import ray

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        tasks = ray.data.from_items([{"task": n} for n in range(count)], override_num_blocks=-(-count // together))
        done = tasks.map_batches(
            _Actor,
            fn_constructor_args=(ray.cloudpickle.dumps(work), _VERSIONS),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=self.count, initial_size=self.count),
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
        with redirect_stdout(sys.stderr):  # Ray reports lost actors to stdout, which is for results
            for n, row in enumerate(done.iter_rows()):
                if row["task"] != n:
                    raise RuntimeError(f"Ray returned the result of task {row['task']} in place of {n}")
                result, error = pickle.loads(row["answer"])
                if error is not None:
                    raise error
                yield result

    def pool(
        self, function: Callable[[Task, ItemGuard], Result], tasks: Sequence[Task], workers: int, **options: Any
    ) -> Iterator[Result]:
        """Do what `vidssl.base.worker_pool.ordered` does, which runs in each actor."""
        together = max(self.cpus, min(_FILES, len(tasks) // (4 * self.count)))
        return self.run(
            lambda numbers: ordered(function, [tasks[n] for n in numbers], workers, **options), len(tasks), together
        )

    def extract(self, subject: Subject, videos: VideoList, rows: Sequence[int]) -> Iterator[Features]:
        """Yield the features of rows of a list, part by part."""
        encoder, test, device = subject.encoder, subject.test, self._device
        # A batch is encoded as a whole, as without Ray: in other batches the last bits can differ.
        count, batch = len(rows), test.batch_size
        size = batch * -(-max(_VIDEOS, -(-count // _MOST)) // batch)
        parts = [rows[start : start + size] for start in range(0, count, size)]
        extract = partial(features.extract_features, encoder, videos, test, device)
        return self._with_network("extract", encoder, [partial(extract, rows=part) for part in parts])

    def track(
        self, tracker: Tracker, videos: VideoList, *rest: Any, shard: tuple[int, int] = (0, 1), **options: Any
    ) -> Tracked:
        """Do what `vidssl.tracking.track_list` does, which runs in each actor."""
        count = max(1, min(_MOST, len(videos) // shard[1] // _VIDEOS))
        tracker = replace(tracker, device=self._device)
        track = partial(track_list, tracker, videos, *rest, **options)
        shards = [(shard[0] + n * shard[1], count * shard[1]) for n in range(count)]
        parts = self._with_network("track", tracker.backbone, [partial(track, shard=part) for part in shards])
        return join_parts(parts, videos)

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if self.gpus else "cpu")

    def _with_network(self, title: str, network: nn.Module, parts: Sequence[Callable[[], Result]]) -> Iterator[Result]:
        """Call the parts of a list, with their network on the device of the actor."""
        work = partial(_call_parts, network, self._device, parts)
        yield from progress(self.run(work, len(parts)), title=title, unit="part", total=len(parts))


def _call_parts(
    network: nn.Module, device: torch.device, parts: Sequence[Callable[[], Result]], numbers: list[int]
) -> Iterator[Result]:
    network.to(device)
    for n in numbers:
        yield parts[n]()


class _Actor:
    """Holds what the work needs, such as the network."""

    def __init__(self, work: bytes, versions: Tree) -> None:
        self._work, self._versions = pickle.loads(work), versions

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        tasks = batch["task"].tolist()
        for task, answer in zip(tasks, self._answers(tasks), strict=False):  # none after an error
            yield {"task": [task], "answer": [pickle.dumps(answer)]}

    def _answers(self, tasks: list[int]) -> Iterator[tuple[Any, VidsslError | None]]:
        try:
            if self._versions != _VERSIONS:
                raise ConfigError(
                    f"{os.uname().nodename} has {_VERSIONS}, not {self._versions}: install the same versions"
                )
            for result in self._work(tasks):
                yield result, None
        except VidsslError as error:
            yield None, error


ON_RAY = ("extract", "check", "shrink", "track")


def run_on_ray(command: str, arguments: Sequence[str]) -> None:
    """Run a command with its arguments on a Ray cluster; errors are raised."""
    job, parser, _ = parser_of(command, prog=f"python -m vidssl.apps.cluster.commands_on_ray {command}")
    parser.epilog = "--workers: of each actor, and its CPUs (default 1)"
    option = parser.add_argument
    option("--address", default="auto", help="of the cluster; local: start one here (default auto: the one that runs)")
    option("--actors", type=at_least(1), metavar="N", help="most actors (default: as many as fit on the cluster)")
    if command in ("extract", "track"):
        option("--gpus-per-actor", type=above_zero, metavar="N", help="such as 1 or 0.5 (default: the CPU computes)")
    parsed = parse(parser, job.signature, arguments)
    options = {name: parsed.pop(name, None) for name in ("address", "actors", "gpus_per_actor", "json")}
    with running(f"on Ray: {command}", arguments), errors_in_options(job.signature):
        result = _run(command, job, options, parsed)
    print_result(result, options["json"])
    if not getattr(result, "complete", True):
        sys.exit(1)


def _run(command: str, job: Job, options: dict[str, Any], arguments: dict[str, Any]) -> Any:
    if command == "extract" and "shard" in arguments:
        raise ConfigError("--shard is for machines without Ray, which divides the list: leave it out")
    if arguments.get("device", "cpu") != "cpu":
        raise ConfigError(f"--device {arguments['device']}: leave it out, --gpus-per-actor decides")
    for name in ("videos", "out", "root"):  # the actors run in other folders
        if name in arguments:
            arguments[name] = arguments[name].absolute()
    workers = arguments.setdefault("workers", 1)
    actors = _connect(options["address"], options["actors"], max(1, workers), options["gpus_per_actor"] or 0)
    if command in ("extract", "track"):
        arguments["device"] = "cpu"
    work: dict[str, dict[str, Any]] = {"extract": {"cluster": actors}, "track": {"tracking": actors.track}}
    return job.call(**arguments, **work.get(command, {"pool": actors.pool}))


def _connect(address: str, count: int | None, cpus: int, gpus: float) -> Actors:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        if not ray.is_initialized():
            ray.init(address, logging_level=logging.WARNING, log_to_driver=False)
    except ImportError:
        raise ConfigError("ray is not installed; pip install 'vidssl[ray]'") from None
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"no Ray cluster at --address {address} ({error}): ray start --head") from None
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(min(has.get("CPU", 0) // cpus, has.get("GPU", 0) // gpus if gpus else math.inf) for has in nodes)
    if not (count or room):
        raise ConfigError(f"no node has {cpus} CPUs and {gpus:g} GPUs: lower --workers, or give --actors if some will")
    return Actors(count or int(room), cpus, gpus)


def ray_main() -> None:
    """Run `python -m vidssl.apps.cluster.commands_on_ray COMMAND …`."""
    parser = Parser(prog="python -m vidssl.apps.cluster.commands_on_ray", description="Commands on a Ray cluster.")
    parser.add_argument("command", choices=ON_RAY, help="--help lists its options")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    guarded(lambda: run_on_ray(parsed.command, parsed.arguments), parsed.arguments)


if __name__ == "__main__":  # by its name: other processes import what this one refers to
    from vidssl.apps.cluster import commands_on_ray as ray

    ray.ray_main()
