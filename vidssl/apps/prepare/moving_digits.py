"""Synthetic videos of moving digits."""

from pathlib import Path
from typing import Any, Literal

from vidssl.base.config import bind
from vidssl.data.moving_digits import MovingDigits, ensure


def prepare_moving_digits(
    out: Path,
    *,
    train: int = 640,
    test: int = 160,
    frames: int = 48,
    fps: int = 25,
    size: int = 64,
    seed: int = 0,
    mnist: str | None = None,
    motions: Literal["periodic", "asymmetric"] = "periodic",
    masks: bool = False,
) -> str:
    """Synthetic videos of moving digits, with their lists.

    Args:
        out: Folder for what is written.
        train: Training videos.
        test: Test videos.
        frames: Frames of a video.
        fps: Frame rate.
        size: Height and width in pixels.
        seed: Random seed.
        mnist: Folder with MNIST's idx files, instead of scikit-learn's 8x8 digits.
        motions: Periodic, or asymmetric: motions that differ from their reversal, as growing and shrinking.
        masks: Also write masks, and crops of the digits with part masks.
    """
    given: dict[str, Any] = {
        "train": train,
        "test": test,
        "frames": frames,
        "fps": fps,
        "size": size,
        "seed": seed,
        "mnist": None if mnist is None else str(mnist),
        "motions": motions,
        "masks": masks,
    }
    settings = bind(MovingDigits, given, "moving-digits")
    action = "rendered" if ensure(out, settings) else "found"
    lists = sorted(map(str, out.glob("*/*.csv")))
    return "\n".join([f"{action} {train} training and {test} test videos in {out}", *lists])
