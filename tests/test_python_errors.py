"""Wrong calls of Python's functions: one line in Python's words, with the remedy; commands name their own options."""

import ast
import json
import re
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vidssl
from vidssl.base.errors import CheckpointError, ConfigError, DataError, VidsslError
from vidssl.base.types import Features
from vidssl.cli import COMMANDS, Group, errors_in_options, in_options, print_result
from vidssl.cli.options_from_signatures import OTHER_NAMES, Argument, JobSignature
from vidssl.data import SAMPLERS, ClipDataset, read_list
from vidssl.evaluation.search import nearest
from vidssl.jobs.measurement_runner import JobResults
from vidssl.models.backbones import BACKBONES
from vidssl.transforms import RECIPES

PACKAGE = Path(vidssl.__file__).parent
ROWS = torch.eye(3)
ONE = Features(torch.ones(1, 4), torch.tensor([-1]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: vidssl.search(ROWS, k=0), ConfigError, "k is 0: .*1 or more"),
        (lambda: vidssl.search(ROWS, ROWS, k=-1), ConfigError, "k is -1"),
        (lambda: vidssl.search(ROWS, k=2.5), ConfigError, r"k is 2.5"),
        (lambda: vidssl.search(ROWS[:1]), DataError, "one row, which does not find itself: give a query"),
        (lambda: vidssl.search(ONE), DataError, "one row, which does not find itself"),
        (lambda: vidssl.search(ROWS[:0]), DataError, "gallery has no rows"),
        (lambda: vidssl.search(ROWS[:0], ROWS), DataError, "gallery has no rows"),
        (lambda: vidssl.search(ROWS, ROWS[:0]), DataError, "query has no rows"),
        (lambda: vidssl.search(ROWS, ROWS[0]), DataError, r"query has the shape \(3,\), not \(N, D\).*x\[None\]"),
        (lambda: vidssl.search(ROWS[0]), DataError, r"gallery has the shape \(3,\)"),
        (lambda: vidssl.search(ROWS[None], ROWS), DataError, r"gallery has the shape \(1, 3, 3\)"),
        (lambda: vidssl.search(ROWS, ROWS[:, :2]), DataError, "the queries have 2 features, the gallery 3"),
        (lambda: vidssl.search(ROWS.long()), DataError, r"int64.*x.float\(\)"),
        (lambda: vidssl.search(np.eye(3)), ConfigError, r"gallery is a numpy.ndarray.*torch.from_numpy"),
        (lambda: vidssl.search(ROWS, [1.0, 2.0]), ConfigError, "query is a list"),
        (lambda: vidssl.search(ROWS, exclude=torch.tensor([1, 2])), DataError, r"exclude has the shape \(2,\)"),
        (lambda: vidssl.search(ROWS, exclude=torch.ones(1, 2)), DataError, "exclude .*int64"),
        (lambda: nearest(ROWS, ROWS, 0), ConfigError, "k is 0"),
        (lambda: vidssl.search(ROWS, one_per_video=True), ConfigError, "needs the files"),
        (lambda: vidssl.extract("vidssl-small", "x.mp4", clip=2), TypeError, "'clip'.*did you mean 'clips'"),
        (lambda: vidssl.extract("vidssl-small", "x.mp4", croops=2), TypeError, "'croops'.*did you mean 'crops'"),
        (
            lambda: vidssl.load_backbone("vidssl-big"),
            CheckpointError,
            "vidssl-big is neither .*there are: vidssl-default, vidssl-frames, vidssl-free, vidssl-small",
        ),
        (lambda: vidssl.load_backbone("vidssl-smal"), CheckpointError, "did you mean 'vidssl-small'"),
        (lambda: vidssl.extract("vidssl-smal", ["x.mp4"]), VidsslError, "did you mean 'vidssl-small'|x.mp4"),
        (lambda: vidssl.load_backbone(nn.Linear(2, 2)), ConfigError, "is a path or name, not Linear"),
        (
            lambda: vidssl.save_backbone(nn.Linear(2, 2), "x"),
            ConfigError,
            "this Linear does not state its clips: give cfg",
        ),
        (
            lambda: vidssl.train("toy/sce", ["steps=1"]),
            ConfigError,
            r"'KEY=VALUE' .*each an argument; got \['steps=1'\]",
        ),
        (lambda: vidssl.build_backbone("resnet3d18", widht=8), ConfigError, "did you mean 'width'"),
        (lambda: vidssl.TestClips(clips=1), ConfigError, "TestClips: .*clip: is required"),
        (lambda: vidssl.TestClips(clip=2, clips=1), ConfigError, "TestClips: .*clip: Input should be"),
    ],
)
def test_a_wrong_call_is_one_error_with_the_remedy(call, kind, message):
    with pytest.raises(kind, match=f"(?s){message}") as caught:
        call()
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("registry", [SAMPLERS, RECIPES, BACKBONES], ids=lambda registry: registry.kind)
def test_a_wrong_setting_of_python_is_that_of_a_file(registry):
    for name in registry:
        known = sorted(registry[name].Config.model_fields)
        for key in known[:3]:
            with pytest.raises(ConfigError, match=f"{key}{key[-1]}: unknown key \\(did you mean '"):
                registry[name].Config(**{f"{key}{key[-1]}": 1})


def test_a_broken_video_names_the_remedy_of_the_caller(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no video" * 99)
    with pytest.raises(DataError, match=r"^the only video cannot be read: \S+a.mp4: not a video"):
        vidssl.extract("vidssl-small", tmp_path, workers=0, progress=False)
    (tmp_path / "b.mp4").write_bytes(b"no video" * 99)
    with pytest.raises(DataError, match=r"^none of the 2 videos .*a.mp4: not a video"):
        vidssl.extract("vidssl-small", tmp_path, workers=0, progress=False)
    (tmp_path / "b.mp4").unlink()
    sampler = SAMPLERS["center"](SAMPLERS["center"].Config(frames=2, sampling_rate=1))
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=16, short_side=16))
    with pytest.raises(DataError, match=r"a.mp4.*skip=True") as caught:
        ClipDataset(vidssl.read_input(tmp_path), sampler, [recipe])[0, 0]
    assert "allow" not in str(caught.value)
    (tmp_path / "x.csv").write_text("path,label\na.mp4,0\n")
    with pytest.raises(DataError, match=r"data.max_broken") as caught:
        settings = {"output": tmp_path / "o", "steps": 1, "device": "cpu", "data.workers": 0, "batch_size": 1}
        vidssl.train("sce_small", settings, videos=read_list(tmp_path / "x.csv"), progress=False)
    assert "--" not in str(caught.value) and "allow" not in str(caught.value)


def test_settings_of_a_dataset_are_in_its_help():
    assert {field.name for field in fields(ClipDataset)} <= {*re.findall(r"^ +(\w+):", ClipDataset.__doc__, re.M)}


# Commands ---------------------------------------------------------------------------------------------------


def test_commands_name_their_options():
    names = ("allow_missing", "grid", "trust", "root", "k", "model", "boxes", "to")
    known = JobSignature("", "", tuple(Argument(name, "", None, "", False) for name in names), False)
    for text, expected in {
        "skip them: allow_missing=True": "skip them: --allow-missing",
        "a layer and grid=4, or root=FOLDER": "a layer and --grid 4, or --root FOLDER",
        "load it with trust=True (a run: checkpoint.trust=true)": "load it with --trust-checkpoint (a run: "
        "checkpoint.trust=true)",
        'boxes=FILE or to="frames", and splits=[1, 2, 3]': "--boxes FILE or --to frames, and --splits 1 2 3",
        "model=FOLDER": "--checkpoint FOLDER",
        "set method.k=6; 'k=6' in k=6/x.mp4 and a/root=1 stay; other=5 too": None,
    }.items():
        assert in_options(text, known) == (expected or text)
    with pytest.raises(DataError, match=r"^x; --allow-missing$") as caught, errors_in_options(known):
        raise DataError("x; allow_missing=True")
    assert type(caught.value) is DataError


def test_what_a_command_prints_names_its_options(capsys):
    """Such as the reason why an analysis could not be made; files and JSON have the words of Python."""
    known = JobSignature("", "", (Argument("allow_missing", "", None, "", False),), False)
    result = JobResults({"reason": "allow_missing=True"})
    result.text, result.file = "Not measured: a video is broken, allow_missing=True", Path("out/allow_missing=True")
    print_result(result, as_json=False, worded=partial(in_options, signature=known))
    assert capsys.readouterr().out == "Not measured: a video is broken, --allow-missing\nout/allow_missing=True\n"
    print_result(result, as_json=True, worded=partial(in_options, signature=known))
    assert json.loads(capsys.readouterr().out)["reason"] == "allow_missing=True"


# Programs of the command line: what follows their names is a command to type, as right in Python as elsewhere.
PROGRAMS = r"\b(?:vidssl \w+|pip install|ray start|hf auth|python -m)\b[^;,()]*"
# Modules that parse options or write whole commands, and options of srun.
PARSERS = {"apps/cluster/commands_on_ray.py", "jobs/training_report.py"}
OF_SRUN = re.compile("--(kill-on-bad-exit|wait|cpus-per-task)=.*")


def spoken(path):
    """Each text of a module that is no docstring, with its line; f-strings with … for values."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    quiet = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    for node in ast.walk(tree):
        if id(node) in quiet | inner:
            continue
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.parent.name != "cli")


def test_no_module_below_the_commands_names_an_option():
    actual = [
        f"{module}:{line}: {text}"
        for module in MODULES
        if module not in PARSERS
        for line, text in spoken(PACKAGE / module)
        if re.search(r"(?<![\w-])--[a-z]", re.sub(PROGRAMS, "", text)) and not OF_SRUN.fullmatch(text)
    ]
    assert MODULES and not actual


def test_every_command_names_its_options_in_errors():
    """No argument of Python that a message can name is an option of a command by another name, but for two."""
    assert OTHER_NAMES == {"model": "checkpoint", "trust": "trust-checkpoint"}
    jobs = [
        job for entry in COMMANDS.values() for job in (entry.jobs.values() if isinstance(entry, Group) else [entry])
    ]
    for job in jobs:
        names = {argument.name for argument in job.signature.arguments}
        assert not names & {"checkpoint", "trust_checkpoint"} or job.function == "export"
        for name in names:
            option = OTHER_NAMES.get(name, name).replace("_", "-")
            assert in_options(f"give {name}=1", job.signature) == f"give --{option} 1"
