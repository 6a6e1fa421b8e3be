"""Frame i is frame i in AVI files with B-frames, whose time stamps are out of order: read off the frames themselves.

The two files are small transcodes of our own (tests/video/files/README.md), so this holds in every clone.
"""

from pathlib import Path

import av
import numpy as np
import pytest

from vidssl.base.keyed_generators import generator
from vidssl.video.reader import open_video

FILES = Path(__file__).with_name("files")
NAMES = ("xvid_b_frames.avi", "xvid_packed.avi")
COUNT = 62


def numbers(frames):
    """Read the numbers off frames (T, 3, H, W): 8 stripes on top, white where the bit is 1."""
    bits = frames[:, 0, 16, 8::16] > 120  # (T, 8): the middle of each stripe
    return (bits * (1 << np.arange(8))).sum(axis=1).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_frames_come_by_their_numbers(name):
    random = generator(11)
    with open_video(FILES / name) as video:
        assert video.meta.num_frames == COUNT and video.meta.fps == 25
        for asked in (range(COUNT), range(COUNT)[::-1], range(1, COUNT, 7), random.integers(COUNT, size=40).tolist()):
            assert numbers(video.frames(asked)) == [*asked]
        assert numbers(np.stack([frame.transpose(2, 0, 1) for frame in video.iter_frames()])) == [*range(COUNT)]
    for i in range(COUNT):  # each alone, as a clip that begins anywhere
        with open_video(FILES / name) as video:
            assert numbers(video.frames([i])) == [i]


@pytest.mark.parametrize("name", NAMES)
def test_the_time_stamps_are_out_of_order(name):
    """The trap is there: what does not hold of these files cannot be proven with them."""
    with av.open(str(FILES / name)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.codec_tag) == ("mpeg4", "XVID")
        packets = [packet for packet in container.demux(stream) if packet.size]
    stamps = [packet.pts for packet in packets]
    assert stamps != sorted(stamps) and len(packets) == COUNT
    assert (b"DivX503b1393p" in bytes(packets[0])) == (name == "xvid_packed.avi")


def test_frames_sorted_by_time_stamp_are_in_another_order():
    """As readers do that collect the decoded frames by pts (pytorchvideo); in the packed file that order is wrong."""
    with av.open(str(FILES / "xvid_packed.avi")) as container:
        frames = [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    by_stamp = [frame for _, frame in sorted(frames, key=lambda found: found[0])]
    shown = numbers(np.stack(by_stamp).transpose(0, 3, 1, 2))
    assert sorted(shown) == [*range(COUNT)] and shown[:8] == [0, 1, 3, 2, 4, 6, 5, 7]
