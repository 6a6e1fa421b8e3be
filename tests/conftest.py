"""What all tests share: the real videos, a small rendered set, and a way to write a video."""

import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest
import torch

from vidssl.data.clip_samplers import SAMPLERS
from vidssl.data.moving_digits import MovingDigits, ensure
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES

REAL = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have long tests: one that starts last keeps all other processes waiting."""
    first = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in first)


def is_required(reason: str, required: str) -> bool:
    """Whether a skip for this reason is an error: VIDSSL_REQUIRE names words of reasons, "shared,gpu", or is "all"."""
    words = [word.strip().lower() for word in required.split(",") if word.strip()]
    return "all" in words or any(word in reason.lower() for word in words)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Make a skip an error where VIDSSL_REQUIRE names what is missing."""
    return _refused((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Likewise for a file that is skipped whole."""
    return _refused((yield))


def _refused(report: Any) -> Any:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if is_required(reason, os.environ.get("VIDSSL_REQUIRE", "")):
            report.outcome, report.longrepr = ("failed", f"VIDSSL_REQUIRE={os.environ['VIDSSL_REQUIRE']}: {reason}")
    return report


@contextmanager
def _permissions():
    """Let permissions count for root too: its effective capabilities 1 and 2 (DAC) are taken away for a while."""
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, libc = (ctypes.c_uint32 * 6)(), ctypes.CDLL(None)
    assert libc.capget(head, before) == 0
    without = (ctypes.c_uint32 * 6)(*before)
    without[0] &= ~0b110
    assert libc.capset(head, without) == 0
    try:
        yield
    finally:
        libc.capset(head, before)


@pytest.fixture
def permissions():
    """A context in which permissions count for root too."""
    return _permissions


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several threads on a small machine are slower, and sums in another order are other numbers."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Fail a test that leaves torch with more: with a process on each core, what follows takes 20 times longer."""
    yield
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 1, f"the test left torch with {threads} threads"


def _usual_log_levels() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("vidssl").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Undo the log levels of a command, as of `--quiet`, that a test or a fixture ran in this process."""
    _usual_log_levels()
    yield
    _usual_log_levels()


@pytest.fixture(autouse=True)
def same_folder() -> Iterator[None]:
    """Fail a test that leaves the process in another folder: those after it read `configs/` relative to this one."""
    here = Path.cwd()
    yield
    assert Path.cwd() == here, f"the test left the process in {Path.cwd()}: use monkeypatch.chdir"


@pytest.fixture(scope="session", autouse=True)
def small_heap() -> None:
    """Let collections of garbage pass over what the imports have made: each would take a second."""
    gc.collect()
    gc.freeze()


def _check_all(check: Callable[..., object], cases: Mapping[Any, tuple]) -> None:
    failed = []
    for name, arguments in cases.items():
        try:
            check(*arguments)
        except (Exception, SystemExit, pytest.fail.Exception) as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    assert cases and not failed, f"{len(failed)} of {len(cases)} fail\n" + "\n".join(failed)


@pytest.fixture(scope="session")
def check_all() -> Callable[[Callable[..., object], Mapping[Any, tuple]], None]:
    """Check many cases in one test, and report all that fail: `check_all(check, {name: arguments})`."""
    return _check_all


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Make a file or folder that all processes of pytest share: `made_once("digits", render)` calls `render(path)`."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"

    def made(name: str, make: Callable[[Path], object]) -> Path:
        path, done = shared / name, shared / f"{name}.done"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(path)
                done.touch()
        return path

    return made


@pytest.fixture(scope="module")
def import_from() -> Iterator[Callable[[Path, str], Any]]:
    """Import a module from a folder: `import_from(folder, "arms")`; undone afterwards, with what it registers."""
    path, modules, registries, folders = [*sys.path], {*sys.modules}, (METHODS, BACKBONES, SAMPLERS), set()
    before = [dict(registry._all()) for registry in registries]

    def imported(folder: Path, name: str) -> Any:
        folders.add(folder)
        sys.path.insert(0, str(folder))
        return importlib.import_module(name)

    yield imported
    sys.path[:] = path
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if name not in modules and file and Path(file).parent in folders:
            del sys.modules[name]
    for registry, entries in zip(registries, before, strict=True):
        registry._entries = entries


WORLD = runpy.run_path(str(Path(__file__).parent / "distributed" / "world.py"))


@pytest.fixture(scope="session")
def run_world() -> Callable[..., list]:
    """Run a function of the file in several processes: `run_world(2, function, *arguments)` lists its results."""
    return WORLD["run_world"]


@pytest.fixture(scope="session")
def start_world() -> Callable[..., object]:
    """Start such processes: `start_world(2, function, *arguments)` has `kill`, `wait` and `results`."""
    return WORLD["World"]


@pytest.fixture(scope="session")
def run_script() -> Callable[..., tuple[int, str, str]]:
    """Run a script as a command: `run_script("a.py", "--out", "x", cwd=folder)` gives its status, stdout and stderr."""
    return WORLD["run_script"]


FORKED_PYTHON = runpy.run_path(str(Path(__file__).with_name("forked_python.py")))


@pytest.fixture(scope="module")  # the tests of other files see no process
def forked_python() -> Iterator[Path]:
    """Give a program that runs scripts and modules as `python` does, with the imports behind it."""
    folder = Path(tempfile.mkdtemp(prefix="forked-"))  # the path of a socket has 100 characters at most
    server = WORLD["World"](1, FORKED_PYTHON["serve"], str(folder / "socket"))
    while not (folder / "socket").exists():
        assert server.processes[0].is_alive()
        time.sleep(0.02)
    FORKED_PYTHON["write_client"](folder / "python", folder / "socket")
    yield folder / "python"
    os.killpg(server.processes[0].pid, signal.SIGKILL)
    server.processes[0].join()
    shutil.rmtree(folder)


class ShownVideo(NamedTuple):
    """A video on the page of a retrieval."""

    name: str  # with its span
    link: str  # relative to the page; "": none
    preview: bytes | None  # JPEG
    is_copy: bool = False  # of its query
    maps: tuple[bytes, ...] = ()


def _search_page(folder: Path) -> list[tuple[ShownVideo, list[ShownVideo]]]:
    page = (folder / "index.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])

    def shown(video: int, _: float = 1.0, is_copy: int = 0, *maps: list[Any]) -> ShownVideo:
        file, _, span, moment, preview = data["videos"][video]
        name, _, link = data["files"][file]
        stored = [None if each is None else (folder / each[0]).read_bytes() for each in (preview, *maps)]
        return ShownVideo(f"{name} {span}".strip(), link + moment, stored[0], bool(is_copy), (*stored[1:],))

    return [(shown(video), [shown(*hit) for hit in hits]) for video, hits in data["queries"]]


@pytest.fixture(scope="session")
def search_page() -> Callable[[Path], list[tuple[ShownVideo, list[ShownVideo]]]]:
    """Read the page of a retrieval: `search_page(folder)` lists the queries and the nearest videos of each."""
    return _search_page


@pytest.fixture(scope="session")
def real() -> Path:
    """Folder of real videos beside the checkout."""
    if not REAL.is_dir():
        pytest.skip("the folder of real videos, ../shared/data, is not there")
    return REAL


@pytest.fixture(scope="session")
def digits(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The moving digits set of the toy configs, rendered once; not to be changed by a test."""
    settings = MovingDigits(train=40, test=16, frames=24, size=48, masks=True)
    return made_once("toys/data", lambda path: ensure(path, settings))


def _write_video(
    path: Path,
    frames: np.ndarray,
    fps: int | Fraction = 25,
    codec: str = "libx264",
    gop: int = 12,
    b_frames: int = 0,
    options: dict[str, str] | None = None,
    ticks: Sequence[int] | None = None,
    base: Fraction | None = None,
    pixels: str = "yuv420p",
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    base = base or 1 / Fraction(fps)
    with av.open(f"file:{path}", "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = b_frames
        stream.codec_context.time_base = base
        if options is not None:
            stream.options = options
        elif codec == "libx264":
            x264 = f"scenecut=0:b-adapt=0:bframes={b_frames}"
            stream.options = {"crf": "12", "preset": "veryfast", "x264-params": x264}
        for tick, image in zip(range(len(frames)) if ticks is None else ticks, frames, strict=True):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = int(tick), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def _write_variable(path: Path, frames: np.ndarray, ticks: Sequence[int], base: Fraction, b_frames: int = 0) -> Path:
    return _write_video(path, frames, b_frames=b_frames, ticks=ticks, base=base)


@pytest.fixture(scope="session")
def write_variable() -> Callable[..., Path]:
    """Write (path, frames (T, H, W, 3), ticks (T,), their unit in seconds, b_frames) as H.264, and give the path."""
    return _write_variable


@pytest.fixture(scope="session")
def write_video() -> Callable[..., Path]:
    """Write (path, frames (T, H, W, 3), fps, codec, gop, b_frames, options, ticks, base, pixels); give the path."""
    return _write_video


def _write_sound(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        for number in range(8):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 8000, number * 1024, Fraction(1, 8000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="session")
def write_sound() -> Callable[[Path], Path]:
    """Write a file with sound and no picture, and give the path."""
    return _write_sound


@pytest.fixture(scope="session")
def numbered() -> Callable[[int], np.ndarray]:
    """Give frames (T, 32, 64, 3) that show their number: eight stripes, white where its bit is 1."""

    def make(count: int) -> np.ndarray:
        bits = (np.arange(count)[:, None] >> np.arange(8)) & 1  # (T, 8)
        stripes = np.repeat(bits * 200 + 20, 8, axis=1).astype(np.uint8)  # (T, 64)
        return np.broadcast_to(stripes[:, None, :, None], (count, 32, 64, 3)).copy()

    return make


@pytest.fixture(scope="session")
def number_of() -> Callable[[np.ndarray], list[int]]:
    """Read the numbers off frames (T, 3, H, W) of such a video, of any size."""

    def read(frames: np.ndarray) -> list[int]:
        height, width = frames.shape[2:]
        middle = (
            frames[:, 0, min(16, height // 2), width // 16 :: width // 8] > 120
        )  # (T, 8): the middle of each stripe
        return (middle * (1 << np.arange(8))).sum(axis=1).tolist()

    return read
