"""The command `vidssl`: one module per sub-command, with its arguments and the job that it runs."""

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

import vidssl
from vidssl.errors import Interrupted, PeerError, VidsslError

INTERRUPTED = 75  # exit status of a run that was stopped by a signal, saved its state and can be resumed

# Command -> summary. The module of a command's name has a function of that name, which imports what the job needs after
# parsing, so that --help and a mistyped option do not wait for torch.
COMMANDS = {
    "prepare": "write the lists of a folder of videos or of a data set",
    "train": "pre-train, finetune, probe or train from scratch",
    "test": "measure a network on a list: accuracy, kNN, SVM, few labels, retrieval",
    "retrieval": "search a gallery of videos and write a page with the results",
    "extract": "write the features of a list of videos",
    "track": "track the regions of videos",
    "analyze": "measure how invariant networks are to transformations",
    "check": "decode every video of a list and write a list without the broken ones",
    "shrink": "copy videos into a small format that decodes fast",
    "compare": "compare the retrieval results of two networks on one page",
    "launch": "submit a training to Slurm",
    "doctor": "report which optional parts work on this machine",
    "schema": "print the JSON schema of config files, for editors",
}


def main(command: str | None = None) -> None:
    """Run `vidssl COMMAND …`, or the one command of a script in tools/."""
    if command is not None:
        guarded(lambda: run(command, sys.argv[1:]))
        return
    parser = argparse.ArgumentParser(
        prog="vidssl",
        description="Self-supervised learning of video representations.",
        epilog="commands:\n" + "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=vidssl.__version__)
    parser.add_argument(
        "command", choices=COMMANDS, metavar="COMMAND", help="see below; COMMAND --help lists its options"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    guarded(lambda: run(parsed.command, parsed.arguments, f"vidssl {parsed.command}"))


def run(command: str, arguments: Sequence[str], prog: str | None = None) -> None:
    """Run a command with its arguments; errors are raised.

    Args:
        command: A name of `COMMANDS`.
        arguments: Its words.
        prog: Name of the program in its help; the script's if None.
    """
    module = importlib.import_module(f"vidssl.commands.{command}")
    getattr(module, command)(arguments, prog)


def guarded(command: Callable[[], None]) -> None:
    """Run a command; print an error that the user can fix as one line and exit with status 2.

    Other statuses: 75 after SIGTERM or SIGUSR1, when the run is saved; 130 after Ctrl-C; 1 if another process of the
    run was lost, or after a bug.
    """
    start_log()
    try:
        command()
    except (VidsslError, OSError) as error:  # OSError: for example, the disk is full
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, PeerError) else 2)
    except Interrupted as request:
        sys.exit(130 if request.signal == signal.SIGINT else INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(130)


def start_log() -> None:
    """Log to stderr, with time and rank."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s%(rank)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Formatter(logging.Formatter):
    """Adds the rank in runs of several processes; it is read for each line, as Slurm's is set after the start."""

    def format(self, record: logging.LogRecord) -> str:
        several = os.environ.get("WORLD_SIZE", "1") != "1"
        record.rank = f" rank {os.environ.get('RANK', '?')}" if several else ""
        return super().format(record)
