"""What the scripts in datasets/ share."""

import argparse
from collections.abc import Callable

from vidssl.commands import guarded as guarded


def prepare(options: argparse.Namespace, write: Callable[..., object]) -> None:
    """Write lists with the options of a script in datasets/, and print the report."""
    print(write(**vars(options)))
    print(f"lists written to {options.out}")
