"""`--json`: each command states its mistakes as one object on stdout, and as a line on stderr."""

import json
import signal

import pytest

from vidssl import cli
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
    assert printed == {"error": line.partition("error: ")[2], "status": code} and code == 2


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
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted: Ctrl-C"),
        (Interrupted(signal.SIGTERM), 75, "interrupted"),
        (PeerError("process 1 has ended"), 1, "process 1 has ended"),
        (OSError(28, "No space left on device"), 2, "[Errno 28] No space left on device"),
    ],
)
def test_each_status(error, status, message, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as caught:
        cli.guarded(fail, ["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"error": message, "status": status} and caught.value.code == status
    with pytest.raises(SystemExit):
        cli.guarded(fail, [])
    assert not capsys.readouterr().out


def test_a_bug_is_stated_and_raised(capsys, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        cli.guarded(lambda: 1 / 0, ["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"error": "a bug of vidssl: ZeroDivisionError: division by zero", "status": 1}
    monkeypatch.setenv("RANK", "1")  # the main process has stdout
    with pytest.raises(ZeroDivisionError):
        cli.guarded(lambda: 1 / 0, ["--json"])
    assert not capsys.readouterr().out


def test_the_name_of_a_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["vidssl", "trian", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "invalid choice: 'trian'" in json.loads(capsys.readouterr().out)["error"]
