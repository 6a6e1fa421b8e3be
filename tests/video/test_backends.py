"""The optional backends return the same frames as PyAV or refuse the file with the reason."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from vidssl.base.errors import ConfigError, DecodeError
from vidssl.base.keyed_generators import generator
from vidssl.base.worker_pool import ordered
from vidssl.video.reader import open_video

REAL = Path(__file__).parents[3] / "shared" / "data"
GOOD = [
    path
    for folder in (REAL / "containers", REAL / "ucf101_clips", Path(__file__).with_name("files"))
    for path in sorted(folder.glob("*.*"))
    if path.name != "corrupted.mp4" and path.suffix not in (".md", ".py")
]
UNRELIABLE = "timestamps are unreliable"
REFUSED = {
    "decord": {
        "gradient.gif": "",
        "nasa_13013.mp4": "several video streams",
        "sine_stereo_mp2.mpg": UNRELIABLE,
        "testsrc2_av1_10bit.mp4": "",
        "v_ApplyEyeMakeup_g01_c01.avi": UNRELIABLE,
        "xvid_b_frames.avi": UNRELIABLE,
        "xvid_packed.avi": UNRELIABLE,
    },
    "torchcodec": {
        "sine_stereo_mp2.mpg": UNRELIABLE,
        "v_ApplyEyeMakeup_g01_c01.avi": UNRELIABLE,
        "xvid_b_frames.avi": UNRELIABLE,
        "xvid_packed.avi": UNRELIABLE,
    },
}


# Most of the time goes into the larger files.
SMALL = [path for path in GOOD if path.stat().st_size < 200_000 or path.name in REFUSED["decord"]]
LARGE = [path for path in GOOD if path not in SMALL]
files = pytest.mark.parametrize(
    "paths", [SMALL, pytest.param(LARGE, marks=[pytest.mark.long])], ids=["small files", "large files"]
)


def compared(path, backend):
    """Compare frames of a backend with ours: the largest mean difference, or why the file is refused."""
    with open_video(path) as video:
        small = video.meta.height * video.meta.width <= 640 * 480
        count = min(video.meta.num_frames, 120 if small else 20)
        ours = video.frames(range(count)).astype(np.int16)
    asked = [[0], [count - 1], generator(3).integers(count, size=6).tolist(), [count // 2] * 2 + [0]]
    worst = 0.0
    try:
        with open_video(path, backend) as video:
            assert video.meta.num_frames >= count
            for indices in asked:
                for i, frame in zip(indices, video.frames(indices), strict=True):
                    near = range(max(0, i - 3), min(count, i + 4))
                    far = {j: float(np.abs(ours[j] - frame).mean()) for j in near}
                    assert far[i] == min(far.values()), f"frame {i} of {path.name} is another one: {far}"
                    worst = max(worst, far[i])
            if small and count == video.meta.num_frames <= 60:
                every = np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)
                worst = max(worst, float(np.abs(every - ours).mean()))
    except DecodeError as error:
        assert "\n" not in str(error) and path.name in str(error) and "use data.backend=pyav" in str(error)
        return str(error)
    return worst


def check(actual, backend):
    refused = {name for name, value in actual.items() if isinstance(value, str)}
    assert refused == {*REFUSED[backend]} & {*actual}  # of those that are there
    for name, value in actual.items():
        if isinstance(value, str):
            assert REFUSED[backend][name] in value
        else:
            assert value <= 5, name  # other versions of FFmpeg round 10-bit and odd-sized frames otherwise


@files
def test_the_same_frames_or_a_refusal_of_decord(paths):
    pytest.importorskip("decord", reason="decord has wheels for Linux on x86-64 only")
    check({path.name: compared(path, "decord") for path in paths}, "decord")


@files
def test_the_same_frames_or_a_refusal_of_torchcodec(paths, pyavs_ffmpeg):
    """In a process of its own: torchcodec looks for FFmpeg's libraries where the environment of its start points."""
    pytest.importorskip("torchcodec", reason="torchcodec is not installed", exc_type=Exception)
    command = [sys.executable, __file__, *map(str, paths)]
    done = subprocess.run(command, env=pyavs_ffmpeg, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    check(json.loads(done.stdout.splitlines()[-1]), "torchcodec")


PIXELS = 5_000_000  # of a file, of which every frame is asked for


def frames_alone(path, backend):
    """Ask for each frame alone, in a file that was opened for it: those that are another one, or why it is refused.

    Of a larger file it is so many frames that they have `PIXELS`. Every fourth row and column is compared.
    """
    with open_video(path) as video:
        count = len(video)
        ours = np.stack([frame[::4, ::4] for frame in video.iter_frames()]).transpose(0, 3, 1, 2).astype(np.int16)
        size = max(12, min(count, PIXELS // (video.meta.height * video.meta.width)))
    numbers = range(count) if size >= count else np.sort(generator(5).choice(count, size, replace=False)).tolist()
    wrong = []
    for number in numbers:
        try:
            with open_video(path, backend) as video:
                frame = video.frames([number])[0, :, ::4, ::4].astype(np.int16)
        except DecodeError as error:
            assert "use data.backend=pyav" in str(error)
            return str(error)
        near = range(max(0, number - 16), min(count, number + 17))
        far = {other: float(np.abs(frame - ours[other]).mean()) for other in near}
        if far[number] > min(far.values()) or far[number] > 5:
            wrong.append(number)
    return wrong


OF_BROKEN_TIME = sorted(REAL.glob("cases/*/data/c/*.*"))
EVERY = [*OF_BROKEN_TIME, *(path for path in GOOD if path.parent.name == "containers")]
ALSO_REFUSED = {"hevc.mp4", "hevc10.mkv", "opengop.mp4", "w.wmv"}  # by decord, beside those of unreliable times


@pytest.mark.long
@pytest.mark.parametrize("backend", ["pyav", "decord", "torchcodec"])
def test_every_frame_alone(backend, pyavs_ffmpeg):
    """Decoders of other packages seek to a key frame, and may not find the frames beside it."""
    pytest.importorskip({"pyav": "av", "torchcodec": "torchcodec"}.get(backend, backend), exc_type=Exception)
    command = [sys.executable, __file__, backend, *map(str, EVERY)]
    done = subprocess.run(command, env=pyavs_ffmpeg, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    stored = json.loads(done.stdout.splitlines()[-1])
    refused = {name for name, value in stored.items() if isinstance(value, str)}
    assert {name: value for name, value in stored.items() if value and name not in refused} == {}
    if backend == "pyav":
        assert not refused
    if backend == "decord" and OF_BROKEN_TIME:
        assert refused >= ALSO_REFUSED


@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        ("mp4", "libx264", {"x264-params": "open-gop=1:scenecut=0:b-adapt=0:bframes=2"}),
        ("mkv", "libx265", {"x265-params": "log-level=none:keyint=12"}),
        ("wmv", "wmv2", {}),
    ],
)
def test_decord_is_refused_where_it_seeks_wrongly(tmp_path, write_video, numbered, number_of, suffix, codec, options):
    pytest.importorskip("decord", reason="decord has wheels for Linux on x86-64 only")
    path = write_video(
        tmp_path / f"a.{suffix}", numbered(60), codec=codec, b_frames=2 * (suffix != "wmv"), options=options
    )
    with pytest.raises(
        DecodeError, match=r"decord cannot return exact frames: .* key frames .*; use data.backend=pyav"
    ):
        open_video(path, "decord")
    with open_video(path) as video:
        assert number_of(video.frames(range(60))) == list(range(60))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_nearly_the_same_frames_or_a_refusal_of_nvdec(write_video, tmp_path):
    pytest.importorskip("torchcodec", reason="torchcodec is not installed", exc_type=Exception)
    rows, columns = np.mgrid[:160, :192]
    frames = [np.stack([rows + 3 * n, columns + n, rows + columns], axis=-1) % 256 for n in range(40)]
    own = [tmp_path / "plain.mp4", tmp_path / "b_frames.mp4"]
    for path, b_frames in zip(own, (0, 2), strict=True):
        write_video(path, np.stack(frames).astype(np.uint8), 25, "libx264", 12, b_frames)
    actual = {path.name: compared(path, "nvdec") for path in [*SMALL, *own]}
    assert not any(isinstance(actual[path.name], str) for path in own), actual
    for name, value in actual.items():
        assert isinstance(value, str) or value <= 5, name


@pytest.mark.parametrize(
    ("backend", "package", "remedy"),
    [("decord", "decord", "pip install decord"), ("torchcodec", "torchcodec.decoders", "apt install ffmpeg")],
)
def test_31_a_missing_backend(digits, monkeypatch, backend, package, remedy):
    monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    path = digits / "videos/test/00000.mp4"
    with pytest.raises(
        ConfigError, match=rf"^backend {backend} cannot be loaded: [^\n]*{remedy}[^\n]*use backend pyav$"
    ):
        open_video(path, backend)
    with open_video(path) as video:  # the default still works
        assert video.frames([3]).shape == (1, 3, 48, 48)


class OnNoGpu:
    """Stands in for torchcodec's decoder on a GPU: decodes with PyAV, on the CPU."""

    cpu_fallback = False

    def __init__(self, path, stream_index, dimension_order, device):
        assert (stream_index, dimension_order, device) == (0, "NHWC", torch.device("cuda:0"))
        self.video = open_video(path)

    def __len__(self):
        return self.video.meta.num_frames

    def get_frames_at(self, wanted):
        return SimpleNamespace(data=torch.from_numpy(self.video.frames(wanted)).permute(0, 2, 3, 1))


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", SimpleNamespace(VideoDecoder=OnNoGpu))
    monkeypatch.setattr("vidssl.video.other_decoders._finds_ffmpeg", lambda decoders: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)


def test_nvdec_returns_the_frames_of_the_gpus_decoder(no_gpu, digits):
    path = digits / "videos/test/00000.mp4"
    expected = [5, 2, 5]
    with open_video(path, "nvdec") as video, open_video(path) as ours:
        np.testing.assert_array_equal(video.frames(expected), ours.frames(expected))


def test_nvdec_refuses_what_the_gpu_cannot_decode(no_gpu, digits, monkeypatch):
    """Where torchcodec would decode on the CPU instead, without an error."""
    monkeypatch.setattr(OnNoGpu, "cpu_fallback", True)
    with (
        open_video(digits / "videos/test/00000.mp4", "nvdec") as video,
        pytest.raises(DecodeError, match=r"nvdec cannot return exact frames: the GPU cannot decode this kind of video"),
    ):
        video.frames([0])


def test_nvdec_refuses_workers(no_gpu, digits):
    path = digits / "videos/test/00000.mp4"
    results = ordered(lambda task, guard: open_video(task, "nvdec").meta.num_frames, [path], workers=1, timeout=60)
    with pytest.raises(ConfigError, match=r"nvdec decodes in the main process: set data.workers=0"):
        list(results)


def test_nvdec_without_a_gpu_or_with_an_old_torchcodec(no_gpu, digits, monkeypatch):
    path = digits / "videos/test/00000.mp4"
    monkeypatch.delattr(OnNoGpu, "cpu_fallback")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.9.1")
    with pytest.raises(ConfigError, match=r"^backend nvdec needs torchcodec 0.10 or later, not 0.9.1: pip"):
        open_video(path, "nvdec")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^backend nvdec needs a CUDA device, there is none: use backend pyav$"):
        open_video(path, "nvdec")


@pytest.mark.parametrize("backend", ["pyav", "decord", "images"])
def test_a_closed_video(backend, write_video, tmp_path, numbered):
    """Closing it again does nothing; reading from it is an error, the same for all backends."""
    if backend == "decord":
        pytest.importorskip("decord", reason="decord has wheels for Linux on x86-64 only")
    path = tmp_path / "0.png"
    if backend == "images":
        cv2.imwrite(str(path), numbered(1)[0])
    else:
        path = write_video(tmp_path / "0.mp4", numbered(12))
    video = open_video(path, "pyav" if backend == "images" else backend)
    video.frames([0])
    video.close()
    video.close()
    for read in (lambda: video.frames([0]), lambda: next(video.iter_frames())):
        with pytest.raises(ValueError, match=rf"^{path} is closed: open the video again"):
            read()


if __name__ == "__main__":
    backend, *files = sys.argv[1:]
    if backend in ("pyav", "decord", "torchcodec"):
        print(json.dumps({path.name: frames_alone(path, backend) for path in map(Path, files)}))
    else:
        print(json.dumps({path.name: compared(path, "torchcodec") for path in map(Path, sys.argv[1:])}))
