"""`extract`, `check`, `shrink` and `track` on a Ray cluster: `python -m vidssl.interop.ray COMMAND …`.

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
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import vidssl
from vidssl.commands import check, guarded, shrink
from vidssl.commands import extract as extraction
from vidssl.commands import track as tracking
from vidssl.commands.arguments import above_zero, at_least, parse
from vidssl.commands.load import Subject
from vidssl.commands.parsers import COMMANDS
from vidssl.config import Tree
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, VidsslError
from vidssl.evaluation.feature_folder import FeatureFolder, read_folder
from vidssl.evaluation.features import extract
from vidssl.progress import progress
from vidssl.tracking.track_videos import Tracked, Tracker, join_parts, track_list
from vidssl.worker_pool import ItemGuard, Result, Task, ordered

_VIDEOS = 16  # fewest videos of a part, which is done again if its actor is lost
_MOST = 1000  # parts of a list
_PARTS = ".parts"  # their folder, until the features are complete
_FILES = 32  # most files that an actor gets at a time


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
            fn_constructor_args=(ray.cloudpickle.dumps(work), _versions()),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=self.count, initial_size=self.count),
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
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
        """Do what `vidssl.worker_pool.ordered` does, which runs in each actor."""

        def work(numbers: list[int]) -> Iterator[Result]:
            return ordered(function, [tasks[n] for n in numbers], workers, **options)

        return self.run(work, len(tasks), max(self.cpus, min(_FILES, len(tasks) // (4 * self.count))))

    def extract(self, subject: Subject, videos: VideoList, path: Path, request: Tree) -> list[FeatureFolder]:
        """Write the features of parts of a list below `path`; parts that an interrupted run wrote are kept."""
        encoder, test, device = subject.encoder, subject.test, self._device
        # A batch is encoded as a whole, as without Ray: in other batches the last bits can differ.
        count, batch = len(videos.records), test.batch_size
        size = batch * -(-max(_VIDEOS, -(-count // _MOST)) // batch)
        rows = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        folders = [path / _PARTS / f"{part.start}-{part.stop}" for part in rows]

        def work(numbers: list[int]) -> Iterator[None]:
            encoder.to(device)
            for n in numbers:
                encode = partial(extract, encoder, videos, test, device, rows=rows[n])
                yield extraction.write_part(encode, videos, folders[n], request)

        for _ in progress(self.run(work, len(rows)), title="extract", unit="part", total=len(rows)):
            pass
        return [read_folder(folder, "delete it", verify=False) for folder in folders]

    def track(
        self, tracker: Tracker, videos: VideoList, *rest: Any, shard: tuple[int, int] = (0, 1), **options: Any
    ) -> Tracked:
        """Do what `vidssl.tracking.track_list` does, which runs in each actor."""
        started = time.monotonic()
        count = max(1, min(_MOST, len(videos.records) // shard[1] // _VIDEOS))
        tracker = replace(tracker, device=self._device)

        def work(numbers: list[int]) -> Iterator[Tracked]:
            tracker.backbone.to(tracker.device)
            for n in numbers:
                part = shard[0] + n * shard[1], count * shard[1]
                yield track_list(tracker, videos, *rest, shard=part, **options)

        parts = progress(self.run(work, count), title="track", unit="part", total=count)
        return replace(join_parts(parts, videos), seconds=time.monotonic() - started)

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if self.gpus else "cpu")


class _Actor:
    """Holds what the work needs, such as the network."""

    def __init__(self, work: bytes, versions: Tree) -> None:
        self._work: Callable[[list[int]], Iterable[Any]] = pickle.loads(work)
        self._versions = versions

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        tasks = batch["task"].tolist()
        for task, answer in zip(tasks, self._answers(tasks), strict=False):  # none after an error
            yield {"task": [task], "answer": [pickle.dumps(answer)]}

    def _answers(self, tasks: list[int]) -> Iterator[tuple[Any, VidsslError | None]]:
        try:
            if self._versions != _versions():
                here = platform.node()
                raise ConfigError(f"{here} has {_versions()}, this machine {self._versions}: install the same versions")
            for result in self._work(tasks):
                yield result, None
        except VidsslError as error:
            yield None, error


def _versions() -> Tree:
    return {"vidssl": vidssl.__version__, "torch": str(torch.__version__)}


def run(command: str, arguments: Sequence[str]) -> None:
    """Run a command with its arguments on a Ray cluster; errors are raised."""
    prog, network = f"python -m vidssl.interop.ray {command}", command in ("extract", "track")
    parser = argparse.ArgumentParser(prog=prog, description=COMMANDS[command].__doc__)
    COMMANDS[command](parser)
    option = parser.add_argument
    option("--address", default="auto", help="of the cluster; local: start one here (default auto: the one that runs)")
    option("--actors", type=at_least(1), metavar="N", help="most processes (default: as many as fit on the cluster)")
    if network:
        text = "GPUs of each process, such as 1 or 0.5 (default: none, the network runs on the CPU)"
        option("--gpus-per-actor", type=above_zero, metavar="N", help=text)
    parser.set_defaults(workers=1, device="cpu")
    parsed = parse(parser, arguments)
    if getattr(parsed, "merge", None) or (command == "extract" and parsed.shard):
        raise ConfigError("--shard and --merge are for machines without Ray, which divides the list: leave them out")
    if network and parsed.device != "cpu":
        raise ConfigError(f"--device {parsed.device}: give --gpus-per-actor instead, as 1")
    for name in ("input", "out", "root"):  # the actors run in other folders
        path = getattr(parsed, name)
        setattr(parsed, name, path and path.absolute())
    actors = _connect(parsed.address, parsed.actors, max(1, parsed.workers), getattr(parsed, "gpus_per_actor", 0) or 0)
    if command == "extract":
        extraction.run(parsed, actors)
        shutil.rmtree(parsed.out / _PARTS, ignore_errors=True)
    elif command == "track":
        tracking.run(parsed, actors.track)
    else:
        {"check": check, "shrink": shrink}[command].run(parsed, actors.pool)


def _connect(address: str, count: int | None, cpus: int, gpus: float) -> Actors:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("ray is not installed; pip install 'vidssl[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise ConfigError(f"no Ray cluster at --address {address} ({error}): ray start --head") from None
    has = ray.cluster_resources()
    room = int(min(has.get("CPU", 0) // cpus, has.get("GPU", 0) // gpus if gpus else math.inf))
    if not room and count is None:
        raise ConfigError(
            f"a process needs {cpus} CPUs and {gpus:g} GPUs, the cluster has {has.get('CPU', 0):g} and "
            f"{has.get('GPU', 0):g}: lower --workers or --gpus-per-actor, or give --actors if the cluster grows"
        )
    return Actors(count or room, cpus, gpus)


def main() -> None:
    """Run `python -m vidssl.interop.ray COMMAND …`."""
    parser = argparse.ArgumentParser(prog="python -m vidssl.interop.ray", description="Commands on a Ray cluster.")
    names = ("extract", "check", "shrink", "track")
    parser.add_argument("command", choices=names, help="COMMAND --help lists its options")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    guarded(lambda: run(parsed.command, parsed.arguments))


if __name__ == "__main__":
    main()
