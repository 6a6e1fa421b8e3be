"""The command `vidssl`: `parsers.py` has the options of each sub-command, and a module of its name runs it."""

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from vidssl.command_line import running
from vidssl.commands.analysis_parsers import ANALYSES
from vidssl.commands.arguments import errors_in_options, list_commands, parse
from vidssl.commands.parsers import COMMANDS
from vidssl.errors import Interrupted, PeerError, VidsslError
from vidssl.plugins import import_modules
from vidssl.version import __version__

INTERRUPTED = 75  # exit status of a run that was stopped by a signal, saved its state and can be resumed


def main(command: str | None = None) -> None:
    """Run `vidssl COMMAND …`, or the one command of a script in tools/."""
    if command is not None:
        guarded(lambda: run(command, sys.argv[1:]))
        return
    parser = argparse.ArgumentParser(
        prog="vidssl",
        description="Self-supervised learning of video representations.",
        epilog=list_commands("commands", COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "command", choices=COMMANDS, metavar="COMMAND", help="see below; COMMAND --help lists its options"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    guarded(lambda: run(parsed.command, parsed.arguments, f"vidssl {parsed.command}"))


def run(command: str, arguments: Sequence[str], prog: str | None = None) -> None:
    """Run a command with its arguments; errors are raised.

    Its module, with torch and all that the job needs, is imported after parsing, so that `--help` and a mistyped option
    are answered at once. `prog` is the name of the program in its help; None: the script's.
    """
    module, parsed = parse_command(command, arguments, prog)
    with running(command, arguments), errors_in_options(parsed):
        import_modules(getattr(parsed, "imports", ()), "--imports")
        try:
            importlib.import_module(f"vidssl.commands.{module}").run(parsed)
        except BaseException:
            from vidssl.output_folder import remove_unused  # here: it imports torch

            remove_unused()
            raise


def parse_command(command: str, arguments: Sequence[str], prog: str | None = None) -> tuple[str, argparse.Namespace]:
    """Parse the arguments of a command: the name of its module, and its options."""
    options, module = COMMANDS[command], command
    parser = argparse.ArgumentParser(prog=prog, description=options.__doc__)
    options(parser)
    if command == "analyze":  # its first argument is the name of one of several commands
        name = parser.parse_args(arguments[:1]).analysis
        options, module, arguments = ANALYSES[name], f"analyze_{name}", arguments[1:]
        parser = argparse.ArgumentParser(prog=f"{parser.prog} {name}", description=options.__doc__)
        options(parser)
    # argparse cannot parse options and settings in any order if there are sub-commands.
    return module, parser.parse_args(arguments) if command == "prepare" else parse(parser, arguments)


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
    except Interrupted as request:  # it was announced, see `StopRequest`
        sys.exit(130 if request.signal == signal.SIGINT else INTERRUPTED)
    except KeyboardInterrupt:
        with suppress(OSError):  # stderr may be closed: Ctrl-C also ends the `tee` of a pipe
            print("interrupted: Ctrl-C", file=sys.stderr, flush=True)
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
