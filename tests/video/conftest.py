"""Where torchcodec finds FFmpeg in all tests of videos, and copies of streams."""

import os
from pathlib import Path

import av
import pytest


@pytest.fixture(scope="session")
def pyavs_ffmpeg(tmp_path_factory):
    """Environment in which FFmpeg's libraries are found under their own names: those that PyAV brings."""
    links = tmp_path_factory.mktemp("ffmpeg")
    for library in Path(av.__file__).parents[1].glob("av.libs/lib[as][vw]*.so.*"):
        name, version = library.name.split("-")[0], library.name.split(".so.")[1].split(".")[0]
        (links / f"{name}.so.{version}").symlink_to(library)
    return {**os.environ, "LD_LIBRARY_PATH": str(links), "OMP_NUM_THREADS": "1"}


def _remux(source, path, change=lambda packets: packets, prepare=lambda stream: None):
    with av.open(str(source)) as before, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(before.streams.video[0])
        prepare(stream)
        for packet in change([packet for packet in before.demux(video=0) if packet.size]):
            packet.stream = stream
            container.mux_one(packet)
    return path


@pytest.fixture(scope="session")
def remux():
    """Copy the packets of a video, or what `change(packets)` makes of them, into another file, and give its path."""
    return _remux
