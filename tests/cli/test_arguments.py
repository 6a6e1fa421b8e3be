"""The options of commands are the arguments of their functions; how they are parsed; what all commands share."""

import importlib
import inspect
import json
import logging
import os
import re
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge

import vidssl
from vidssl import cli
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import Report
from vidssl.base.worker_pool import Pool
from vidssl.cli import COMMANDS, Group, Job, parser_of
from vidssl.cli.options_from_signatures import (
    OTHER_NAMES,
    REQUIRED,
    above_zero,
    at_least,
    config_file,
    option_of,
    parse,
)
from vidssl.evaluation.features import TestClips
from vidssl.jobs.extract import Cluster
from vidssl.jobs.job import NetworkOptions
from vidssl.tracking import Tracked

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"
JOBS = {name: job for name, job in COMMANDS.items() if isinstance(job, Job)} | {
    f"{group} {name}": job
    for group, entry in COMMANDS.items()
    if isinstance(entry, Group)
    for name, job in entry.jobs.items()
}


# Options and arguments --------------------------------------------------------------------------------------

# What commands have beside the arguments of their functions.
OWN = {"help", "quiet", "json"}
# Arguments that are functions and objects of Python, which a command line cannot name.
PYTHON = (Report, Pool, Cluster | None, TestClips, Callable[..., Tracked])
OF_MODULES = {("export", "cfg")}  # and those that belong to a module of torch
TAKES_INPUT = {"train", "show"}  # `videos` of these is a word among the settings


def function_of(job):
    return getattr(importlib.import_module(job.module), job.function)


def arguments_of(function):
    """Type and default of each argument of a function by name, of `*settings` and of `**options` too."""
    hints = get_type_hints(function, include_extras=True)
    collected = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_type_hints(get_args(hints[name])[0], include_extras=True)
            collected |= {option: (kind, None) for option, kind in options.items()}
        else:
            collected[name] = (hints[name], REQUIRED if parameter.default is parameter.empty else parameter.default)
    return collected


def expected_of(name):
    """The arguments of a command: those of its function, of `train` also the splits of `train_splits`."""
    actual = arguments_of(function_of(JOBS[name]))
    if name == "train":
        others = arguments_of(vidssl.train_splits)
        assert {*others} - {*actual} == {"splits"}
        actual["splits"] = (others["splits"][0], None)
    return {
        argument: about
        for argument, about in actual.items()
        if about[0] not in PYTHON and (name, argument) not in OF_MODULES
    }


def actions_of(name):
    """The options of a command, by the arguments that they become."""
    _, parser, _ = parser_of(name)
    return {action.dest: action for action in parser._actions if action.dest not in OWN}


def alternatives(kind):
    """The types of a union, without None."""
    if get_origin(kind) in (Union, UnionType):
        return [part for part in get_args(kind) if part is not NoneType]
    return [kind]


def check_source(name, expected):
    """What is read from the source is what Python has: names, their order, defaults; a text states other defaults."""
    read = {argument.name: argument for argument in JOBS[name].signature.arguments}
    assert [n for n in expected if n not in read] == ["settings"] * JOBS[name].signature.takes_settings
    assert [each for each in expected if each in read] == [each for each in read if each in expected]
    for argument, about in read.items():
        # It is an option, or of a type of Python: a new type must be added to the table of options.
        assert (option_of(about) is not None) == (argument in expected), f"{name}: {about.type}"
        if argument in expected:
            same = about.default == expected[argument][1]
            assert same or (about.default is None and "(default" in about.text), argument


def check_option(action, kind, default, unnamed, prints):
    """An option has the name, the need, the choices and limits of its argument, and says what it is."""
    required = default is REQUIRED or (action.dest == "out" and not prints)  # a command writes what it finds
    assert action.default == (None if unnamed else SUPPRESS), "what is not given is left to the function"
    if unnamed:
        assert not action.option_strings and (action.nargs == "?") is not required
    else:
        assert action.option_strings == [f"--{OTHER_NAMES.get(action.dest, action.dest).replace('_', '-')}"]
        assert action.required is required
    assert action.help and len(action.help) >= 5 and not action.help.endswith(".")
    if default not in (REQUIRED, None, (), "") and not isinstance(default, bool):
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        shown = {" ": "space"}.get(shown, f"{shown:g}" if isinstance(shown, float) else shown)
        assert f"(default {shown})" in action.help or "(default: all)" in action.help
    kind, *others = alternatives(kind)
    kind, least = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
    inner = get_args(kind)[0] if get_origin(kind) is Sequence else kind
    choices = list(get_args(inner)) if get_origin(inner) is Literal else None
    assert others or (action.choices and [*action.choices]) == choices
    if least is not None:
        right = least.ge if isinstance(least, Ge) else least.gt + 0.5
        wrong = least.ge - 1 if isinstance(least, Ge) else least.gt
        assert action.type(str(right)) == right
        with pytest.raises(ArgumentTypeError, match=f"^{wrong} is (less than {right}|not above {wrong})$"):
            action.type(str(wrong))


def test_the_options_of_a_command_are_the_arguments_of_its_function(check_all):
    def check(name):
        expected, actions = expected_of(name), actions_of(name)
        check_source(name, expected)
        if name in TAKES_INPUT:
            del expected["videos"]
        assert {*actions} == {*expected}
        if "settings" in actions:
            settings = actions.pop("settings")
            assert (settings.option_strings, settings.nargs, settings.metavar) == ([], "*", "KEY=VALUE")
        # The input is written without its name: the first argument that has no option of another name.
        parameters = inspect.signature(function_of(JOBS[name])).parameters.values()
        plain = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        others = ("model", "cfg", "out", "videos" * (name in TAKES_INPUT))
        unnamed = [each for each in plain if each not in others][:1]
        assert [dest for dest, action in actions.items() if not action.option_strings] == unnamed
        for dest, action in actions.items():
            check_option(action, *expected[dest], dest in unnamed, name == "retrieval")

    check_all(check, {name: (name,) for name in JOBS})


def test_options_of_networks_come_last_in_their_order():
    options = [*get_type_hints(NetworkOptions)]
    assert [argument.name for argument in JOBS["test"].signature.arguments][-len(options) :] == options


def test_a_function_is_where_the_command_says(check_all):
    def check(name):
        job = JOBS[name]
        assert function_of(job).__name__ == job.function and function_of(job).__doc__.startswith(job.summary[:20])
        if job.module.startswith("vidssl.jobs."):
            assert getattr(vidssl, job.function) is function_of(job)

    check_all(check, {name: (name,) for name in JOBS})


# Parsing ----------------------------------------------------------------------------------------------------


def parsed(command, *words):
    job, parser, arguments = parser_of(command, [str(word) for word in words])
    return parse(parser, job.signature, arguments)


def error_of(command, *words):
    """The message of a command that is refused before its job."""
    with pytest.raises(ConfigError) as caught:
        cli.run(command, [str(word) for word in words], f"vidssl {command}")
    return str(caught.value)


def test_only_what_is_given_is_passed_on():
    assert parsed("check", "list.csv", "--out", "x") == {"videos": Path("list.csv"), "out": Path("x"), "json": False}
    assert parsed("map", "--features", "f", "--out", "x").keys() == {"features", "out", "json"}
    words = parsed("test", "l.csv", "--checkpoint", "a.pt", "--out", "x", "--trust-checkpoint", "--clips", "2", "a=1")
    del words["json"]
    assert words == {
        "videos": Path("l.csv"),
        "model": "a.pt",
        "out": Path("x"),
        "trust": True,
        "clips": 2,
        "settings": ["a=1"],
    }


def test_options_and_settings_in_any_order():
    words = ["a=1", "l.csv", "--checkpoint", "x.pt", "b=2", "--out", "o", "--splits", "1", "2", "c={split}"]
    values = parsed("test", "l.csv", *(word for word in words if word != "l.csv"))
    assert values["splits"] == [1, 2] and values["settings"] == ["a=1", "b=2", "c={split}"]
    values = parsed("train", "--cfg", "toy/sce", "steps=1", "--splits", "3", "1", "seed={split}")
    assert values["splits"] == [3, 1] and values["settings"] == ["steps=1", "seed={split}"]
    values = parsed("analyze invariance", "l.csv", "--checkpoint", "a", "b", "--out", "o", "--imports", "m", "n", "k=1")
    assert (values["model"], values["imports"], values["settings"]) == (["a", "b"], ["m", "n"], ["k=1"])


def test_options_with_and_without_a_value():
    words = ["--checkpoint", "c", "--out", "o"]
    for command, option, value in (("track l.csv", "overlay", 3), ("retrieval --query q", "gradcam", "layer3")):
        name, *more = [*command.split(), *words]
        assert option not in parsed(name, *more)
        assert parsed(name, *more, f"--{option}")[option] is True
        assert parsed(name, *more, f"--{option}", value)[option] == value


def test_numbers_or_all():
    words = ("l.csv", "--checkpoint", "c", "--out", "o", "--limit")
    assert parsed("analyze all", *words, "all")["limit"] == "all" and parsed("analyze all", *words, "9")["limit"] == 9


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (at_least(1), "0"),
        (at_least(0), "-1"),
        (above_zero, "0"),
        (above_zero, "-1"),
        (above_zero, "inf"),
        (above_zero, "nan"),
    ],
)
def test_numbers_have_limits(kind, text):
    with pytest.raises(ArgumentTypeError, match=f"^{text} is (less than|not above) [01]$"):
        kind(text)


@pytest.mark.parametrize("function", [vidssl.check, vidssl.shrink])
def test_as_many_workers_as_cpus_that_may_be_used(function, digits, tmp_path):
    class Done(Exception):
        pass

    def pool(work, tasks, workers, **options):
        raise Done(workers)

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with pytest.raises(Done, match=r"^1$"):
            function(digits / "motion/test.csv", out=tmp_path / "out", pool=pool)
        with pytest.raises(Done, match=r"^3$"):
            function(digits / "motion/test.csv", out=tmp_path / "out", pool=pool, workers=3)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    "name", ["sce_small", "pretrain/sce_small", "sce_small.yaml", "configs/pretrain/sce_small.yaml"]
)
def test_configs_are_found_by_name_in_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file(name) == TOP / "configs/pretrain/sce_small.yaml"


def test_a_path_wins_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sce_small").write_text("steps: 1")
    assert config_file("sce_small") == Path("sce_small")
    Path("toy").mkdir()
    assert config_file("toy/sce") == TOP / "configs/toy/sce.yaml"


WRONG_CONFIGS = [
    ("sce_smal", "sce_smal is neither a file nor the name of a config (did you mean 'sce_small'?)"),
    ("my/run.yaml", "my/run.yaml is neither a file nor the name of a config"),
    ("small", "small is the name of 3 configs: detection/small, finetune/small, linear/small"),
]


@pytest.mark.parametrize(("name", "message"), WRONG_CONFIGS)
def test_a_name_of_no_or_several_configs(name, message, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of("train", "--cfg", name) == message
    words = [str(digits / "motion/test.csv"), "--checkpoint", "random", "--cfg", name, "--out", "x"]
    with pytest.raises(ConfigError, match=re.escape(message)):  # of a network
        cli.run("extract", words)
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("train", ["--cfg", "toy/sce", "--splits", "1,2,3"], "1,2,3 is not a number: write --splits 1 2 3"),
        ("train", ["--cfg", "toy/sce", "--splits", "1", "1"], "--splits needs different values, got 1 1"),
        ("train", ["--cfg", "toy/sce", "--splits", "steps=3"], "--splits needs different values, got none"),
        (
            "train",
            ["--cfg", "toy/sce", "a", "b"],
            "one input is possible, got a and b: quote a pattern, or set data.train",
        ),
        ("check", ["a.csv", "--out", "x", "--workers", "0"], "argument --workers: 0 is less than 1"),
        ("check", ["a.csv", "--out", "x", "--frames", "3"], "unrecognized arguments: --frames 3"),
        (
            "check",
            ["a.csv", "--out", "x", "--worker", "2"],
            "--worker 2 (did you mean '--workers'?); see vidssl check --help",
        ),
        ("check", ["a.csv", "--out", "x", "--workers", "a"], "argument --workers: a is not an integer"),
        ("check", ["a.csv", "--out", "x", "--timeout", "a"], "argument --timeout: a is not a number"),
        ("check", ["a.csv"], "the following arguments are required: --out"),
        ("shrink", ["a.csv", "--out", "x", "--to", "frame"], "invalid choice: 'frame' (choose from"),
        ("analyze", ["classes"], "argument NAME: invalid choice: 'classes' (choose from"),
        ("prepare trackingnet", ["a", "--out", "x", "--chunks", "a"], "a is not a number: write --chunks 1 2 3"),
    ],
)
def test_other_spellings_name_the_right_one(command, words, message):
    assert message in error_of(command, *words)


# What all commands share ------------------------------------------------------------------------------------


def test_json_is_one_object_on_stdout(digits, tmp_path, capsys):
    words = [digits / "motion/test.csv", "--out", tmp_path / "checked", "--json", "--workers", "1"]
    cli.run("check", [str(word) for word in words])
    stored = json.loads(capsys.readouterr().out)
    assert (stored["rows"], stored["kept"], stored["findings"]) == (16, 16, [])
    assert stored["list"] == str(tmp_path / "checked/test.csv")
    cli.run("prepare", ["folder", str(digits), "--out", str(tmp_path / "lists"), "--json"])
    stored = json.loads(capsys.readouterr().out)
    assert [*stored] == ["report"] and stored["report"].startswith("112 videos found")
    cli.run("doctor", ["--json"])
    assert json.loads(capsys.readouterr().out)["decoding with pyav"]["works"]


def test_a_command_returns_what_its_function_returns(digits, tmp_path, capsys):
    words = [str(digits / "motion/test.csv"), "--out", str(tmp_path / "checked"), "--workers", "1"]
    checked = cli.run("check", words)
    assert checked.rows == 16 and capsys.readouterr().out == f"{checked}\n"
    assert cli.run("schema", []) == vidssl.schema()
    assert json.loads(capsys.readouterr().out) == vidssl.schema()


def test_quiet_hides_information():
    assert "quiet" not in parsed("check", "list.csv", "--out", "x", "--quiet")
    log = logging.getLogger("vidssl")
    assert not log.isEnabledFor(logging.INFO) and log.isEnabledFor(logging.WARNING)


def test_errors_name_options(digits, tmp_path, capsys):
    words = ["a{split}.csv", "--checkpoint", "vidssl-small", "--out", str(tmp_path / "x")]
    with pytest.raises(ConfigError, match=r"^a\{split\}.csv contains \{split\}; name the splits: --splits 1 2 3$"):
        cli.run("test", words)
    with pytest.raises(ConfigError, match=r"name the splits: splits=\[1, 2, 3\]$"):
        vidssl.test("vidssl-small", words[0], out=tmp_path / "x")
    (tmp_path / "a.mp4").write_bytes(b"no video" * 99)
    (tmp_path / "b.mp4").write_bytes(b"no video" * 99)
    (tmp_path / "list.csv").write_text("path,label\na.mp4,0\nb.mp4,1\n")
    words = ["--checkpoint", "vidssl-small", "--workers", "0", "--out", str(tmp_path / "x")]
    with pytest.raises(DataError, match=r"a.mp4.*--allow-missing"):
        videos = str(tmp_path / "list.csv")
        cli.run("test", [videos, *words, "--protocol", "uniformity", "--train-list", videos])


@pytest.mark.parametrize("command", ["compare", "extract", "map", "test", "analyze invariance"])
def test_a_word_too_many_is_no_setting(command, digits, tmp_path):
    """Such as a second file of an option that takes one."""
    words = [*command.split()[1:], digits / "motion/test.csv", "--checkpoint", "random", "--labels", "a.csv", "b.csv"]
    with pytest.raises(ConfigError, match=r"^b\.csv is no setting KEY=VALUE, and the option before it takes no more"):
        cli.run(command.split()[0], [*map(str, words), "--out", str(tmp_path / "out")])


def test_a_wrong_argument_of_python_names_the_right_one():
    with pytest.raises(TypeError, match=r"test has no option 'train'.*there are: "):
        vidssl.test("vidssl-small", "a.csv", train="b.csv")
    with pytest.raises(TypeError, match=r"test has no option 'clip'.*did you mean 'clips'"):
        vidssl.test("vidssl-small", "a.csv", clip=2)
    for name, value, message in (
        ("clips", 0, "clips=0 is less than 1"),
        ("clips", 1.5, "clips is 1.5, and it is a whole number"),
        ("clips", True, "clips is True, and it is a whole number"),
        ("workers", -1, "workers=-1 is less than 0"),
        ("device", "gpu", "device is 'gpu': choose one of auto, cpu, cuda; CUDA_VISIBLE_DEVICES=1 names one GPU .*"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}$"):
            vidssl.test("vidssl-small", "a.csv", **{name: value})
    with pytest.raises(ConfigError, match=r"^window=0 is not above 0$"):
        vidssl.extract("vidssl-small", "a.csv", window=0)
    with pytest.raises(ConfigError, match=r"^short_side=1 is less than 2$"):
        vidssl.shrink("a.csv", out="x", short_side=1)
