"""Write the two AVI files beside this script: MPEG-4 with B-frames, as XviD and the videos of UCF101 store it.

    python tests/video/files/make_xvid.py

Each frame shows its number, so the order can be checked without any time stamp: 8 stripes on top, white where the bit
of the number is 1 (the first stripe is bit 0). Below them a texture moves.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

FRAMES, HEIGHT, WIDTH, BAND = 62, 96, 128, 32  # pixels; the band holds the stripes
VOP = b"\x00\x00\x01\xb6"  # start code of a frame
# Of the writer of packed files, as decoders know it: "p" for packed.
PACKED = b"\x00\x00\x01\xb2DivX503b1393p"


def picture(number: int, contrast: float = 1.0) -> np.ndarray:
    """Draw a frame (H, W, 3)."""
    bits = (number >> np.arange(8)) & 1
    stripes = np.repeat(bits * 200 + 20, WIDTH // 8)  # (W,)
    y, x = np.mgrid[: HEIGHT - BAND, :WIDTH]
    texture = 128 + contrast * (50 * np.sin((x + 3 * number) / 7) + 40 * np.cos((y - number) / 5))
    gray = np.concatenate([np.broadcast_to(stripes, (BAND, WIDTH)), texture])
    return np.repeat(gray[:, :, None], 3, axis=2).astype(np.uint8)


def encoded(b_frames: int, contrast: float = 1.0) -> Iterator[bytes]:
    """Encode the frames; give one packet for each, in the order of decoding."""
    codec = av.CodecContext.create("mpeg4", "w")
    codec.width, codec.height, codec.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    codec.framerate, codec.time_base = Fraction(25), Fraction(1, 25)
    codec.gop_size, codec.max_b_frames = 30, b_frames
    codec.options = {
        "b_strategy": "0",
        "sc_threshold": "1000000000",
        "flags": "+bitexact+qscale",
        "global_quality": "590",
    }
    for number in range(FRAMES):
        frame = av.VideoFrame.from_ndarray(picture(number, contrast), format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, 25)
        yield from map(bytes, codec.encode(frame))
    yield from map(bytes, codec.encode(None))


def kind(packet: bytes) -> int:
    """The type of a packet's frame: 0 I, 1 P, 2 B."""
    return packet[packet.index(VOP) + 4] >> 6


def packed(packets: list[bytes]) -> Iterator[bytes]:
    """Store a B-frame with the frame that it needs, as XviD does; a frame that is not coded stands where it was."""
    place = 0
    while place < len(packets):
        run = place + 1
        while run < len(packets) and kind(packets[run]) == 2:
            run += 1
        head, *inner = packets[place:run]
        if kind(head) == 0:
            at = head.index(VOP)
            head = head[:at] + PACKED + head[at:]
        if inner:
            yield head + inner[0]
            yield from inner[1:]
            yield _not_coded(packets[place])
        else:
            yield head
        place = run


def _not_coded(packet: bytes) -> bytes:
    """A frame without content, with the time of another: vop_coded is 0."""
    at = packet.index(VOP) + 4
    bits = "".join(f"{byte:08b}" for byte in packet[at : at + 8])
    seconds = re.match("..1*0", bits).group()[2:]  # modulo_time_base
    start = 2 + len(seconds) + 1  # the type, modulo_time_base, a marker
    increment = bits[start : start + 5]  # 5 bits hold 0 to 24
    text = f"01{seconds}1{increment}10"
    text += "0" + "1" * (-(len(text) + 1) % 8)  # stuffing
    return VOP + bytes(int(text[n : n + 8], 2) for n in range(0, len(text), 8))


def write(path: Path, packets: list[bytes]) -> None:
    """Put packets into an AVI file, in their order."""
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.codec_tag = "XVID"
        for number, content in enumerate(packets):
            packet = av.Packet(content)
            packet.pts = packet.dts = number
            packet.time_base, packet.stream = Fraction(1, 25), stream
            packet.is_keyframe = kind(content) == 0
            container.mux_one(packet)


if __name__ == "__main__":
    here = Path(__file__).parent
    write(here / "xvid_b_frames.avi", list(encoded(2)))
    write(here / "xvid_packed.avi", list(packed(list(encoded(2)))))
