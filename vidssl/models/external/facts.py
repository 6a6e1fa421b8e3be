"""What is known of encoders of other libraries: licence and training sets, as their authors state them."""

import re
from dataclasses import dataclass

NOT_STATED = "not stated"


@dataclass(frozen=True)
class Facts:
    """Licence and training sets of weights, and where that is stated."""

    licence: str = NOT_STATED
    training: tuple[str, ...] = (NOT_STATED,)
    source: str = NOT_STATED


_HF = "https://huggingface.co/"
# A pattern of library and name; licence, training sets, source. Only what the source states.
_TABLE: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (r"torchvision .*KINETICS400", NOT_STATED, ("Kinetics-400",), "https://docs.pytorch.org/vision/stable/models.html"),
    (
        r"torchvision .*SWAG_E2E",
        "CC-BY-NC-4.0",
        ("Instagram", "ImageNet-1K"),
        "https://github.com/facebookresearch/SWAG",
    ),
    (
        r"torchvision .*SWAG_LINEAR",
        "CC-BY-NC-4.0",
        ("Instagram", "ImageNet-1K"),
        "https://github.com/facebookresearch/SWAG",
    ),
    (r"torchvision .*IMAGENET1K", NOT_STATED, ("ImageNet-1K",), "https://docs.pytorch.org/vision/stable/models.html"),
    (r"transformers MCG-NJU/videomae-.*kinetics", "CC-BY-NC-4.0", ("Kinetics-400",), f"{_HF}MCG-NJU/videomae-base"),
    (r"transformers MCG-NJU/videomae-(base|large)$", "CC-BY-NC-4.0", ("Kinetics-400",), f"{_HF}MCG-NJU/videomae-base"),
    (
        r"(transformers facebook/vjepa2|hub facebookresearch/vjepa2)",
        "MIT",
        ("Something-Something v2", "Kinetics-400, 600, 700", "HowTo100M", "YT-Temporal-1B", "ImageNet"),
        "https://github.com/facebookresearch/vjepa2",
    ),
    (
        r"(transformers|hub) facebook(research)?/dinov2",
        "Apache-2.0",
        ("LVD-142M",),
        "https://github.com/facebookresearch/dinov2",
    ),
    (
        r"timm .*_in22k_ft_in1k|timm .*_in21k_ft_in1k",
        NOT_STATED,
        ("ImageNet-21K", "ImageNet-1K"),
        "https://huggingface.co/timm",
    ),
    (r"timm .*_in1k$", NOT_STATED, ("ImageNet-1K",), "https://huggingface.co/timm"),
    (r"timm .*lvd142m", NOT_STATED, ("LVD-142M",), "https://github.com/facebookresearch/dinov2"),
)


def facts_of(library: str, name: str, licence: str | None = None, source: str | None = None) -> Facts:
    """Look up weights; what the library itself states, `licence` and `source`, comes first."""
    row = next(
        (row for row in _TABLE if re.match(row[0], f"{library} {name}")), (None, NOT_STATED, (NOT_STATED,), NOT_STATED)
    )
    return Facts(licence or row[1], row[2], source or row[3])
