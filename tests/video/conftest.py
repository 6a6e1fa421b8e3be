"""Where torchcodec finds FFmpeg in all tests of videos."""

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
