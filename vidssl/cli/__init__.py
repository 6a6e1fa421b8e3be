"""The command `vidssl`: each sub-command is a job of vidssl, its options are the job's arguments.

`vidssl test …` calls `test` of vidssl/jobs/test.py; the commands of apps, the analyses and the data sets are those of
`registry.APPS`: `vidssl analyze NAME …` calls `analyze_NAME`, `vidssl prepare NAME …` `prepare_NAME`.
"""

import argparse
import atexit
import importlib
import io
import json
import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vidssl.base.atomic import without_nan
from vidssl.base.command_line_and_notices import running
from vidssl.base.errors import ConfigError, DataError, Interrupted, PeerError, VidsslError, in_words
from vidssl.base.keep_memory import keep_memory
from vidssl.base.registry import APPS
from vidssl.cli.options_from_signatures import JobSignature, Parser, add_options, option_name, parse, read_signature
from vidssl.version import __version__

INTERRUPTED = 75  # exit status of a run that was stopped by a signal, saved its state and can be resumed


class Job(NamedTuple):
    """Where the function of a command is."""

    module: str
    function: str
    of_splits: str | None = None  # the function that is called instead with `--splits`

    @property
    def signature(self) -> JobSignature:
        """Its arguments."""
        signature = read_signature(self.module, self.function)
        if self.of_splits is None:
            return signature
        arguments = read_signature(self.module, self.of_splits).arguments
        splits = next(argument for argument in arguments if argument.name == "splits")
        return replace(signature, arguments=(*signature.arguments, replace(splits, default=None)))

    @property
    def summary(self) -> str:
        """What it does."""
        return self.signature.summary

    def call(self, *args: Any, **arguments: Any) -> Any:
        """Import and call it."""
        return getattr(importlib.import_module(self.module), self.function)(*args, **arguments)


class Group(NamedTuple):
    """A command whose first argument is the name of one of several jobs."""

    summary: str
    jobs: Mapping[str, Job]


def _group(summary: str, kind: str, prefix: str) -> Group:
    jobs = {name.replace("_", "-"): Job(module, f"{prefix}_{name}") for name, module in APPS[kind].items()}
    return Group(summary, jobs)


ANALYSES = _group("Find out what a network has learned: invariances and more.", "analysis", "analyze")
DATA_SETS = _group("Write the lists of a folder of videos or of a data set.", "data set", "prepare")
_JOBS: dict[str, Job | Group] = {
    **{"prepare": DATA_SETS, "analyze": ANALYSES},
    "train": Job("vidssl.jobs.train", "train", "train_splits"),
    **{name: Job(f"vidssl.jobs.{name}", name) for name in ("test", "extract", "track", "doctor")},
    **{"merge": Job("vidssl.jobs.extract", "merge"), "schema": Job("vidssl.jobs.doctor", "schema")},
    **{name: Job(module, name) for name, module in APPS["command"].items()},
}
_ORDER = (  # of `vidssl --help`; apps that are not there have no command
    *("prepare", "show", "train", "test", "retrieval", "extract", "merge", "map", "export", "track", "analyze"),
    *("check", "shrink", "compare", "predict", "doctor", "schema", "launch"),
)
COMMANDS = {name: _JOBS[name] for name in (*_ORDER, *_JOBS) if name in _JOBS and getattr(_JOBS[name], "jobs", True)}


def main(command: str | None = None, name: str | None = None) -> None:
    """Run `vidssl COMMAND …`, or the one command of a script in tools/ and datasets/, of a group the job `name`."""
    keep_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # an ascii terminal: no traceback after the work
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = sys.stderr or open(os.devnull, "w")  # `2>&-`; logs and bars take it for open
    logging.captureWarnings(True)
    arguments = sys.argv[1:]
    if command is None:
        guarded(lambda: _run_named(arguments), arguments)
    else:
        words = command if name is None else f"{command} {name}"
        guarded(lambda: run(words, arguments, Path(sys.argv[0]).name), arguments)


def _run_named(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names."""
    parser = _parser_of_names("vidssl", "Self-supervised learning of video representations.", "COMMAND", COMMANDS)
    parser.add_argument("--version", action="version", version=__version__)
    command = parser.parse_args(arguments[:1]).name
    run(command, arguments[1:], f"vidssl {command}")


def _parser_of_names(prog: str | None, summary: str, word: str, jobs: Mapping[str, Job | Group]) -> Parser:
    parser = Parser(prog, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = list_jobs("commands" if word == "COMMAND" else "one of", jobs)
    text = f"see below; {word} --help lists its options"
    parser.add_argument("name", choices=jobs, metavar=word, help=text)
    return parser


def list_jobs(title: str, jobs: Mapping[str, Job | Group]) -> str:
    """List jobs for `--help`, a line for each: its name, and what it does."""
    width = max(map(len, jobs))
    lines = [f"  {name:<{width}}  {re.split('[.] |[.]$', job.summary)[0]}" for name, job in jobs.items()]
    return "\n".join([f"{title}:", *lines])


def run(command: str, arguments: Sequence[str], prog: str | None = None) -> Any:
    """Run a command with its arguments, print what it returns, and return it; errors are raised.

    `command` is its name, of a group also that of the job, `analyze gradcam`, which else is the first argument. The
    module of the job, with torch and all that it needs, is imported after parsing, so that `--help` and a mistyped
    option are answered at once. `prog` is the name of the program in its help; None: the script's.

    Raises:
        SystemExit: The status is 1, as something was left out: a video that cannot be read.
    """
    job, parser, options = parser_of(command, arguments, prog)
    parsed = parse(parser, job.signature, options)
    as_json = parsed.pop("json")
    settings = parsed.pop("settings", []) if job.signature.takes_settings else ()
    takes_input = any(argument.name == "videos" for argument in job.signature.arguments)
    if inputs := [text for text in settings if takes_input and not _is_setting(text)]:
        if len(inputs) > 1:
            raise ConfigError(f"one input is possible, got {' and '.join(inputs)}: quote a pattern, or set data.train")
        parsed["videos"], settings = Path(inputs[0]), [text for text in settings if _is_setting(text)]
    if takes_input and (paths := [text for text in settings if os.path.exists(text)]):  # noqa: PTH110 - any length
        raise ConfigError(f"{paths[0]} is a setting, and there is a file of this name: write ./{paths[0]} for it")
    if job.of_splits is not None and "splits" in parsed:
        job = Job(job.module, job.of_splits)
    if words := [text for text in parsed.get("settings", ()) if "=" not in text]:
        raise ConfigError(f"{words[0]} is no setting KEY=VALUE, and the option before it takes no more words")
    worded = partial(in_options, signature=job.signature)
    from vidssl.base.config import in_home  # here: pydantic takes longer than a help text

    parsed = in_home(parsed)
    with running(command, arguments, worded), errors_in_options(job.signature):
        cfg = [parsed.pop("cfg", None)] if job.signature.takes_settings else []
        try:
            with redirect_stdout(sys.stderr):  # stdout is for the result: libraries name their downloads there
                result = job.call(*cfg, *settings, **parsed)
        except BaseException:
            from vidssl.base.output_folder import remove_unused  # here: it imports torch

            remove_unused()
            raise
    report = result
    if isinstance(result, str):  # of `prepare`
        report = in_options(result, job.signature)
        if not as_json and parsed["out"] not in Path(report.rpartition("\n")[2]).parents:  # it does not end with them
            report += f"\nlists written to {parsed['out']}"
    print_result(report, as_json, worded)
    if not getattr(result, "complete", True):
        sys.exit(1)
    return result


def _is_setting(text: str) -> bool:
    key, equals, _ = text.partition("=")
    return equals != "" and "/" not in key  # ./a=b is a path


def parser_of(
    command: str, arguments: Sequence[str] = (), prog: str | None = None
) -> tuple[Job, argparse.ArgumentParser, Sequence[str]]:
    """Return the job of a command, its parser, and the arguments that it parses: of a group those after the name."""
    command, _, name = command.partition(" ")
    job: Job | Group = COMMANDS[command]
    parser = Parser(prog)
    if isinstance(job, Group):
        if not name:
            name = _parser_of_names(prog, job.summary, "NAME", job.jobs).parse_args(arguments[:1]).name
            parser, arguments = Parser(f"{parser.prog} {name}"), arguments[1:]
        job = job.jobs[name]
    parser.description = job.signature.description
    add_options(parser, job.signature)
    return job, parser, arguments


_ARGUMENT = re.compile(r"""(?<![\w.'"/-])([a-z]\w*)=(True|[A-Z]+|[0-9.]*[0-9]|"\w+"|\[[\d, ]+\])(?![\w/'"])""")


def in_options(text: str, signature: JobSignature) -> str:
    """Write the arguments of Python that a message names as options: `allow_missing=True` is `--allow-missing`.

    Only those that the command has: what a message says of others, such as settings of a run, stays as it is.
    """
    known = {argument.name for argument in signature.arguments} | {"splits"}
    return _ARGUMENT.sub(partial(_in_option, known), text)


def _in_option(known: Collection[str], match: re.Match[str]) -> str:
    if match[1] not in known:
        return match[0]
    value = match[2].strip('"[]').replace(",", "")
    return option_name(match[1]) + ("" if value == "True" else f" {value}")


@contextmanager
def errors_in_options(signature: JobSignature) -> Iterator[None]:
    """Let the errors of this block name the options of a command, as `in_options`."""
    try:
        yield
    except VidsslError as error:
        error.args = (in_options(str(error), signature),)
        raise


def print_result(result: Any, as_json: bool, worded: Callable[[str], str] = str) -> None:
    """Print what a job returned, in the main process: its text and the file to open, or one JSON object.

    `worded` writes the text as the command does, see `in_options`.
    """
    from vidssl.base import distributed

    if not distributed.is_main() or result is None:
        return
    if as_json:
        content = result.describe() if hasattr(result, "describe") else result
        if is_dataclass(content) and not isinstance(content, type):
            content = asdict(content)
        elif not isinstance(content, dict):
            content = {"path" if isinstance(content, Path) else "report": content}
        lines = [json.dumps(without_nan(content)[0], default=str, allow_nan=False)]
    else:
        lines = [str(line) for line in (worded(str(result)), getattr(result, "file", None)) if line]
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # the reader has closed it, as `head` does: end silently, as other programs do
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        reason = f"cannot print the result to stdout: {error.strerror}"
        raise DataError(f"{reason}; free disk space or send it elsewhere; what the command has written stays") from None


def guarded(command: Callable[[], object], arguments: Collection[str] = ()) -> None:
    """Run a command; print an error that the user can fix as one line and exit with status 2.

    Other statuses: 75 after SIGTERM or SIGUSR1, when the run is saved; 130 after Ctrl-C; 1 if another process of the
    run was lost, or after a bug. If the arguments have `--json`, the main process also prints the error, its
    code (see `VidsslError`) and the status as a JSON object.
    """
    start_log()
    atexit.register(_flush)
    line, code, status = "", "interrupted", 130
    try:
        if os.path.expanduser("~") == "~":  # noqa: PTH111 - neither HOME nor a user: libraries would make a folder "~"
            os.environ["HOME"] = tempfile.gettempdir()
        command()
        return
    except (VidsslError, OSError) as error:
        message, status = in_words(error), 1 if isinstance(error, PeerError) else 2
        line, code = f"error: {message}", error.code if isinstance(error, VidsslError) else "system"
    except Interrupted as request:  # it was announced, see `StopRequest`
        message, status = "interrupted", status if request.signal == signal.SIGINT else INTERRUPTED
    except KeyboardInterrupt:
        line = message = "interrupted: Ctrl-C"
    except Exception as error:
        _print_error("", f"a bug of vidssl: {type(error).__name__}: {error}", "bug", 1, arguments)
        raise
    _print_error(line, message, code, status, arguments)
    sys.exit(status)


def _print_error(line: str, message: str, code: str, status: int, arguments: Collection[str]) -> None:
    with suppress(OSError):  # it is closed: Ctrl-C also ends the `tee` of a pipe
        print(line, end="\n" if line else "", file=sys.stderr)
    if "--json" in arguments and os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            print(json.dumps({"error": message, "code": code, "status": status}, allow_nan=False))


def _flush() -> None:
    """Write what is still to be written, or drop it if the reader has closed it: Python would report that at exit."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            print(end="", file=stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def start_log() -> None:
    """Log to stderr, each line with time and rank."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of a home folder that cannot be written


class _Formatter(logging.Formatter):
    """Begins each line with time and level, in runs of several processes the rank; Slurm's is set after the start."""

    def format(self, record: logging.LogRecord) -> str:
        several = os.environ.get("WORLD_SIZE", "1") != "1"
        rank = f" rank {os.environ.get('RANK', '?')}" if several else ""
        head = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {record.levelname}{rank}"
        return "\n".join(f"{head} {line}" for line in super().format(record).splitlines() or [""])
