"""`--json`: each command states its mistakes as one object on stdout, and as a line on stderr."""

import json
import signal
import subprocess
import sys
from email.message import Message
from urllib.error import HTTPError

import pytest

from vidssl import cli
from vidssl.base import errors
from vidssl.base.errors import Interrupted, PeerError

NAMES = [
    name if isinstance(job, cli.Job) else f"{name} {inner}"
    for name, job in cli.COMMANDS.items()
    for inner in ([""] if isinstance(job, cli.Job) else job.jobs)
]
WITHOUT_INPUT = (
    "doctor",
    "schema",
    "prepare moving-digits",
    "prepare colorful-moving-mnist",
)  # nothing that can be missing


def refused(command, arguments, capsys):
    """Run a command that fails; give its status, the object on stdout and the last line on stderr."""
    with pytest.raises(SystemExit) as caught:
        cli.guarded(command, arguments)
    shown = capsys.readouterr()
    (line,) = shown.out.splitlines()
    return caught.value.code, json.loads(line), shown.err.splitlines()[-1]


def of_command(name, arguments, capsys):
    code, printed, line = refused(lambda: cli.run(name, arguments), arguments, capsys)
    assert printed.pop("code") in ("config", "data", "checkpoint")
    assert printed == {"error": line.removeprefix("error: "), "status": 2} and code == 2 and line.startswith("error: ")


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options(name, capsys):
    of_command(name, [*required(name), "--no-such-option", "--json"], capsys)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_INPUT])
def test_missing_files(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_command(name, [*required(name), "--json"], capsys)


def required(name):
    """What a command cannot do without: files that are missing, and the first of what may be chosen."""
    _, parser, _ = cli.parser_of(name)
    words = []
    for action in sorted(parser._actions, key=lambda action: bool(action.option_strings)):
        if action.required and action.nargs != "*":
            words += [*action.option_strings[:1], next(map(str, action.choices or ["missing.csv"]))]
    return words


@pytest.mark.parametrize(
    ("error", "status", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted", "interrupted: Ctrl-C"),
        (Interrupted(signal.SIGTERM), 75, "interrupted", "interrupted"),
        (Interrupted(signal.SIGINT), 130, "interrupted", "interrupted"),
        (PeerError("process 1 has ended"), 1, "peer", "process 1 has ended"),
        (OSError(28, "Full", "a.csv"), 2, "system", "a.csv: Full; free disk space or choose another folder"),
        (PermissionError(13, "Denied"), 2, "system", "Denied; give this user the permission"),
        (OSError("of a library"), 2, "system", "of a library"),
        (
            HTTPError("http://x", 404, "gone", Message(), None),
            2,
            "system",
            "HTTP Error 404: gone",
        ),  # it has a code of its own
    ],
)
def test_each_status(error, status, code, message, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as caught:
        cli.guarded(fail, ["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"error": message, "code": code, "status": status} and caught.value.code == status
    with pytest.raises(SystemExit):
        cli.guarded(fail, [])
    assert not capsys.readouterr().out


CODES = {  # programs compare them: an entry may be added, none changed
    "VidsslError": "vidssl",
    "ConfigError": "config",
    "DataError": "data",
    "DecodeError": "decode",
    "NoVideoError": "no_video",
    "UndecodableError": "undecodable",
    "TooLargeError": "too_large",
    "SeveralSizesError": "several_sizes",
    "OutputError": "output",
    "FramesOutOfOrderError": "frames_out_of_order",
    "CheckpointError": "checkpoint",
    "UntrustedError": "untrusted",
    "TrainingError": "training",
    "PeerError": "peer",
}


def test_each_class_of_errors_has_its_code(capsys):
    public = {
        name: error
        for name, error in vars(errors).items()
        if name.endswith("Error") and error.__module__ == errors.__name__
    }
    assert public.keys() == CODES.keys()
    for name, error in public.items():

        def fail(error=error):
            raise type("OfAPlugIn", (error,), {})("wrong")  # a class of another module has the code of its base

        assert error("wrong").code == CODES[name]
        assert refused(fail, ["--json"], capsys)[1]["code"] == CODES[name]


def test_a_bug_is_stated_and_raised(capsys, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        cli.guarded(lambda: 1 / 0, ["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"error": "a bug of vidssl: ZeroDivisionError: division by zero", "code": "bug", "status": 1}
    monkeypatch.setenv("RANK", "1")  # the main process has stdout
    with pytest.raises(ZeroDivisionError):
        cli.guarded(lambda: 1 / 0, ["--json"])
    assert not capsys.readouterr().out


def test_the_name_of_a_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["vidssl", "trian", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "invalid choice: 'trian'" in json.loads(capsys.readouterr().out)["error"]


HELP = "import sys; sys.argv = ['vidssl', '--help']; from vidssl.cli import main; main()"
RESULT = "from vidssl.cli import guarded, print_result; guarded(lambda: print_result('done', False))"
FULL = (
    "error: cannot print the result to stdout: No space left on device; free disk space or send it elsewhere; what the "
    "command has written stays\n"
)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("code", "redirection", "status", "shown"),
    [
        (HELP, "| true", 0, ""),
        (RESULT, "| true", 141, ""),
        (RESULT, "> /dev/full", 2, FULL),
        (RESULT, ">&-", 0, ""),
        (RESULT, "2>&-", 0, "done\n"),
    ],
)
def test_a_reader_that_has_gone_and_a_full_disk(code, redirection, status, shown, buffered):
    """Python itself would say "Exception ignored … BrokenPipeError" as it ends, with status 120."""
    command = f'"$0" {"" if buffered else "-u"} -c "$1" {redirection}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command, sys.executable, code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (status, shown)
