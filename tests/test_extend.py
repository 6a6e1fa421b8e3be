"""The programs of docs/extend.md, in the files that it names and run by its commands; those of CONTRIBUTING.md."""

import contextlib
import importlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import vidssl
from vidssl import cli
from vidssl.base.config import bind, read
from vidssl.models.match_checkpoints import Layout

TOP = Path(__file__).parents[1]
sys.path.insert(0, str(TOP / "benchmarks"))
from references import References, read_references  # noqa: E402

sys.path.pop(0)


def blocks_of(page):
    """(section, name of the file that the text before it ends with, or "", language, content) of each block of code."""
    text = (TOP / page).read_text(encoding="utf-8")
    return [
        (text[: match.start()].rpartition("\n##")[2].splitlines()[0].lstrip("# "), *match.groups(default=""))
        for match in re.finditer(
            r"(?:`(\w+\.(?:py|yaml))`[^`\n]*:\n\n)?^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        )
    ]


BLOCKS = blocks_of("docs/extend.md")
OF_CONTRIBUTORS = {(section, language): text for section, _, language, text in blocks_of("CONTRIBUTING.md")}
FILES = {name: text for _, name, _, text in BLOCKS if name}
COMMANDS = {section: text for section, _, language, text in BLOCKS if language == "sh"}
# Shorter than on the page, and without workers: the test is that the programs run.
SHORTER = {"train": ["steps=2", "data.workers=0", "device=cpu"], "test": ["--workers", "0", "--device", "cpu"]}


def run_block(section, folder):
    """Run the commands below a heading; returns what the runs logged, by folder."""
    os.chdir(folder)
    sys.path.insert(0, "")
    words = shlex.split(COMMANDS[section].replace("\\\n", ""))
    starts = [n for n, word in enumerate(words) if word in ("PYTHONPATH=.", "grep")]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        first, *rest = words[start:end]
        if first == "grep":
            pattern, file = rest
            assert any(re.search(pattern, line) for line in Path(file).read_text().splitlines()), rest
        elif rest[0] == "vidssl":
            sys.argv = [*rest, *SHORTER[rest[1]]]
            cli.main()
        else:
            sys.argv = [*rest[1:], *SHORTER[Path(rest[1]).stem.removesuffix("_net")]]
            runpy.run_path(rest[1], run_name="__main__")
    results = {}
    for path in Path("output").rglob("metrics.jsonl"):
        results[path.parent.name] = [json.loads(line) for line in path.read_text().splitlines()]
    for path in Path("output").rglob("results.json"):
        results[path.parent.name] = json.loads(path.read_text())
    return results


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """A folder with the files of the page, and what it takes from a checkout."""
    made = tmp_path_factory.mktemp("extend")
    for name in ("configs", "tools"):
        (made / name).symlink_to(TOP / name)
    for name, text in FILES.items():
        (made / name).write_text(text)
    (made / "output" / "toy").mkdir(parents=True)
    (made / "output" / "toy" / "data").symlink_to(digits)
    return made


def test_the_page_has_its_programs():
    modules = ("methods", "video_methods", "momentum_methods", "classifiers", "protocols", "recipes", "samplers")
    assert set(FILES) == {"my_toy.yaml", *(f"my_{name}.py" for name in (*modules, "backbones"))}
    assert len(COMMANDS) == 6 and len(BLOCKS) == len(FILES) + len(COMMANDS)


@pytest.mark.parametrize(
    ("section", "run", "number"),
    [
        ("A method in one file", "barlow", "invariance"),
        ("The interface", "simsiam", "output_spread"),
        ("Queries and keys", "dcl", "key_rank"),
        ("A classifier", "cosine", "loss"),
        ("A protocol", "watched", "loss"),
        ("A backbone", "own", "loss"),
    ],
)
def test_a_program_runs(section, run, number, folder, run_world):
    (outcome,) = run_world(1, run_block, section, folder)
    steps = [line for line in outcome[run] if number in line]
    assert [line["step"] for line in steps] == [1, 2]
    if section == "A classifier":
        assert 0 <= outcome["test"]["top1"] <= 1


def run_commands_of(folder, commands):
    """Run commands with the package of a folder: the status of each, and what it writes to stdout and stderr."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vidssl"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    main, answers = importlib.import_module("vidssl.cli").main, []
    for words in commands:
        sys.argv = ["vidssl", *map(str, words)]
        status, out, err = 0, io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                status = end.code
        answers.append((status or 0, *(stream.seek(0) or stream.read() for stream in (out, err))))
    return answers


def test_a_command(digits, run_world, tmp_path):
    """In a copy of the package, with the module and the line of the page."""
    text = OF_CONTRIBUTORS["Add a command", "python"]
    shutil.copytree(TOP / "vidssl", tmp_path / "vidssl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "vidssl/apps/count.py").write_text(text)
    registry = tmp_path / "vidssl/base/registry.py"
    (line,) = re.findall(r'`("count": "count")`', (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    before = registry.read_text()
    registry.write_text(before.replace('"command": {', f'"command": {{{line}, '))
    listed = digits / "motion/test.csv"
    commands = [["--help"], ["count", "--help"], ["count", listed, "--seconds", "0.5"]]
    commands += [["count", listed, "--seconds", "9", "--json"], ["count", tmp_path / "none.csv"]]
    commands.append(["count", listed, "--second", "1"])
    (answers,) = run_world(1, run_commands_of, tmp_path, commands)
    general, help, long, as_json, missing, abbreviated = answers
    assert re.search(r"^ +count +Count the videos of a list", general[1], re.MULTILINE)
    assert "--seconds SECONDS" in help[1]
    assert long[1] == "16 of 16 videos are longer than 0.5 s\n"
    assert json.loads(as_json[1]) == {"longer": 0, "videos": 16, "seconds": 9.0}
    assert missing[0] == 2 and missing[2].startswith("error: ") and missing[2].count("\n") == 1
    assert abbreviated[0] == 2, "no abbreviations"


def test_a_published_number(tmp_path):
    text = OF_CONTRIBUTORS["A published number", "yaml"]
    (tmp_path / "row.yaml").write_text("entries:\n" + text)
    (row,) = read(tmp_path / "row.yaml")["entries"]
    tree = read_references().model_dump(mode="json")
    tree["data_sets"]["ucf101"]["entries"] = [row]
    assert bind(References, tree, "the page").data_sets["ucf101"].entries[0].published == {"top1": 91.0}


def test_a_layout():
    text = OF_CONTRIBUTORS["Weights of another project", "python"]
    names = {"Layout": Layout}
    *_, line = text.strip().splitlines()
    exec(text.replace(line, f"LAYOUT = {line}"), names)
    layout, name = names["LAYOUT"], "stage1.unit0.branch2.conv_c.weight"
    assert re.search(layout.sign, name)
    for pattern, replacement in layout.renames:
        name = re.sub(pattern, replacement, name)
    assert name in vidssl.build_backbone("resnet3d50", width=4).net.state_dict()
