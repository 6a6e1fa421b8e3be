"""Runs a function of a test file in several processes that talk to one another, and collects what it gives.

Runs scripts too, as commands: `run_script`.

The processes fork from a server that has imported vidssl and done nothing else: they start at once, and autograd, which
does not survive a fork once it has run, works in them.
"""

import multiprocessing
import os
import pickle
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_server = multiprocessing.get_context("forkserver")
_PACKAGE = Path(__file__).parents[2] / "vidssl"
_server.set_forkserver_preload(
    [
        "vidssl.cli",
        # What commands, registries and networks import when they need it, which takes seconds.
        *(
            f"vidssl.{room}.{path.stem}"
            for room in ("models", "methods", "engine", "jobs")
            for path in (_PACKAGE / room).glob("[a-z]*.py")
        ),
        "pytest",
        "pytorchvideo.models.resnet",
        "sklearn.datasets",
        "torch.utils.tensorboard",
    ]
)


class World:
    """Processes that run `function(*arguments)`, a function at the top level of a file.

    Attributes:
        processes: One a rank.
    """

    def __init__(
        self, world: int, function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = []
        for rank in range(world):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **(env or {}),
            }
            job = {
                "environment": environment if world > 1 else dict(env or {}),
                "file": function.__code__.co_filename,
                "function": function.__name__,
                "arguments": arguments,
                "answer": str(Path(self._folder.name) / str(rank)),
            }
            process = _server.Process(
                target=runpy.run_path, args=(__file__,), kwargs={"init_globals": {"JOB": job}, "run_name": "child"}
            )
            process.start()
            self.processes.append(process)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a process a signal."""
        os.kill(self.processes[rank].pid, number)

    def wait(self, timeout: float = 240) -> list[int]:
        """Wait for all; give their exit codes, negative for signals."""
        for process in self.processes:
            process.join(timeout)
            if process.is_alive():
                for other in self.processes:
                    other.kill()
                raise TimeoutError(f"a process is still there after {timeout} s")
        return [process.exitcode for process in self.processes]

    def results(self, timeout: float = 240) -> list[Any]:
        """Wait for all; list what the function gave, by rank. An exception in one is an error here."""
        codes = self.wait(timeout)
        answers = []
        for rank, code in enumerate(codes):
            path = Path(self._folder.name) / str(rank)
            if not path.exists():
                raise AssertionError(f"process {rank} of {len(codes)} ended with {code} and no answer")
            kind, value = pickle.loads(path.read_bytes())
            if kind == "error":
                raise AssertionError(f"process {rank} of {len(codes)}:\n{value}")
            answers.append(value)
        return answers


def run_world(
    world: int, function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None
) -> list[Any]:
    """Run a function in `world` processes; list what it gives, by rank."""
    return World(world, function, *arguments, env=env).results()


def run_script(script: str | Path, *arguments: Any, cwd: str | Path) -> tuple[int, str, str]:
    """Run a Python script as a command; give its status, and what it writes to stdout and to stderr.

    As `python SCRIPT …` does, in a process of its own that has the imports behind it: they take seconds.
    """
    words = [str(word) for word in (script, *arguments)]
    ((status, out, err),) = run_world(1, _command, words, str(cwd))
    return status, out, err


def _command(words: list[str], folder: str) -> tuple[int, str, str]:
    os.chdir(folder)
    sys.path.insert(0, str(Path(words[0]).parent))
    sys.argv = words
    written = [tempfile.TemporaryFile() for _ in range(2)]
    for number, file in enumerate(written, 1):
        os.dup2(file.fileno(), number)
    status: Any = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    texts = []
    for file in written:
        file.seek(0)
        texts.append(file.read().decode())
    return status, texts[0], texts[1]


def _child(job: dict[str, Any]) -> None:
    os.environ.update(job["environment"])
    import torch

    torch.set_num_threads(1)
    try:
        function = runpy.run_path(job["file"])[job["function"]]
        answer = ("result", function(*job["arguments"]))
    except SystemExit:
        raise
    except BaseException:
        answer = ("error", traceback.format_exc())
    temporary = Path(job["answer"] + ".tmp")
    temporary.write_bytes(pickle.dumps(answer))
    temporary.rename(job["answer"])


if __name__ == "child":
    _child(globals()["JOB"])
