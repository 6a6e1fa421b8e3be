"""What commands take from the machine that they run on."""

import argparse
import os

from vidssl.commands.arguments import add_file_options


def test_as_many_workers_as_cpus_that_may_be_used():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        parser = argparse.ArgumentParser()
        add_file_options(parser)
        assert parser.parse_args(["list.csv", "--out", "out"]).workers == 1
    finally:
        os.sched_setaffinity(0, allowed)
