"""The experiments of docs/papers: no table or figure is forgotten; every row names a config that binds, or a reason."""

import re
import runpy
import shlex
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from vidssl.base.config import bind, find_config, read
from vidssl.base.errors import ConfigError
from vidssl.cli import COMMANDS, parser_of
from vidssl.cli.options_from_signatures import parse
from vidssl.data.dataset import ClipDataset
from vidssl.engine.run_config import load_run
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.jobs import train
from vidssl.jobs.test import protocol_choices
from vidssl.jobs.track import tracker_settings
from vidssl.methods import METHODS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "papers"
PAPERS = runpy.run_path(str(ROOT / "docs" / "builder" / "papers.py"))
COLUMNS = [*PAPERS["COLUMNS"]]


def numbered(name, *labels):
    return {f"{name} {label}" for label in labels}


ITEMS = {
    "sce": numbered("Table", *range(1, 26)) | {"Figure 1"},
    "interclr": numbered("Table", 1, 2, 3) | numbered("Figure", *range(1, 11)),
    "infomin": numbered("Table", *range(1, 12)) | numbered("Figure", *range(1, 7)),
    "frame_invariance": {"Table 5", "Algorithm 1"},
    "spatial_bias": {"Table C.1", "Figure 2", "Figure A.1", "Figure B.1", "Figure B.2", "Figure B.3"},
}
# Parts of tables whose rows are other runs: each is a row of its own.
PARTS = {
    "interclr": {"Figure 5(a)", "Figure 5(b)", "Figure 6(a)", "Figure 6(b)"},
    "infomin": {
        *("Figure 4(a)", "Figure 4(b)", "Table 3(a)", "Table 3(b)", "Table 5(a)", "Table 5(b)", "Table 6(a)"),
        *("Table 6(b)", "Table 7(a)", "Table 7(b)", "Table 8(a)", "Table 8(b)", "Table 8(c)", "Table 9(a)"),
        *("Table 9(b)", "Table 9(c)", "Table 10(a)", "Table 10(b)"),
    },
}
SETTING = re.compile(r"[a-z_]+(?:\.\w+)*=.+", re.DOTALL)
COMMAND = re.compile(r"(?:^|\s)(?:vidssl|python (?:benchmarks|examples)/\w+\.py) .*")
READ = re.compile(
    r"(?<![\w/])(?:lists|data)/[\w/{}.-]+(?:\.csv|\.json|split})|output/[^\s'`]+?(?:/checkpoints/last\.pt|\.csv)"
)


@pytest.fixture(autouse=True)
def plug_in(monkeypatch):
    """Configs name files relative to the repository, and one needs the plug-in of an example."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "part_segmentation"))
    yield
    sys.modules.pop("part_segmentation", None)
    METHODS._entries.pop("part_segmentation", None)
    ClipDataset.read_mask = None


# Reading the experiments ------------------------------------------------------------------------------------


@cache
def page(name):
    return PAPERS["paper_page"](FOLDER / f"{name}.yaml")


@cache
def rows(name):
    return [[row.get(column, "") for column in COLUMNS] for row in PAPERS["read_rows"](FOLDER / f"{name}.yaml")]


def every_row():
    return {f"{name}, {row[0]}, row {n}": (name, row) for name in ITEMS for n, row in enumerate(rows(name), 1)}


def words_of(text):
    """Give the commands of a text, each once, as words."""
    text = re.sub(r"\$\(.*?\)", "4", text.replace("\\\n", " "))
    lines = [line for line in text.splitlines() if COMMAND.search(line.partition("#")[0])]
    words = [shlex.split(line, comments=True) for line in dict.fromkeys(lines)]
    return [line[line.index("python" if "python" in line else "vidssl") :] for line in words]


def commands(name):
    """Give the commands of the code blocks of a page, those of every row too, as words."""
    return words_of("\n".join(re.findall(r"```sh\n(.*?)```", page(name), re.DOTALL)))


def every_command():
    return {f"{name}, command {n}": (words,) for name in ITEMS for n, words in enumerate(commands(name), 1)}


EVERY_PAGE = {name: (name,) for name in ITEMS}


# Checking what they name ------------------------------------------------------------------------------------


def study_of(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return YAML(typ="safe").load(text) if "\nruns:\n" in text else None


@cache
def bind_config(path, settings=(), config=None):
    """Bind a config, or all runs of a study, perhaps with another config; one for several splits as the first."""
    study = study_of(path)
    runs = [()] if study is None else study["runs"].values()
    path = path if study is None else config or study["config"]
    text = (ROOT / path).read_text(encoding="utf-8").split("\noutput:", 1)[1]
    split = 1 if "{split}" in " ".join([text, *settings]) else None
    for words in ([*settings_of_run, *settings] for settings_of_run in runs):
        train.bind_config(read(ROOT / path, words), path) if split is None else load_run(ROOT / path, words, split)


def check_command(words):
    """Parse a command and bind what it names."""
    assert (ROOT / words[1]).exists() if words[0] == "python" else words[1] in COMMANDS
    if words[:2] == ["python", "benchmarks/study.py"]:
        study, *options = words[2:]
        named = options[options.index("--cfg") + 1] if "--cfg" in options else None
        assert {"--lists", "--out"} <= {*options}
        settings = tuple(word for word in options if SETTING.fullmatch(word))
        rest = options[options.index("--runs") + 1 :] if "--runs" in options else []
        runs = [*takewhile(lambda word: not word.startswith("--"), rest)]
        if (ROOT / study).is_dir():
            for name in runs or [path.stem for path in (ROOT / study).glob("*.yaml")]:
                bind_config(f"{study}/{name}.yaml", settings, named)
            return
        content = study_of(study)
        assert content is not None and {*runs} <= {*content["runs"]}
        bind_config(study, settings, named)
    if words[0] == "python":
        return
    job, parser, arguments = parser_of(words[1], words[2:])
    parsed = parse(parser, job.signature, arguments)  # a mistake is a ConfigError
    for chosen in protocol_choices(parsed["protocol"])[0] if "protocol" in parsed else ():
        assert chosen["name"] in PROTOCOLS
        bind(PROTOCOLS[chosen["name"]].Config, {key: value for key, value in chosen.items() if key != "name"}, "test")
    if "tracker" in parsed:
        tracker_settings(parsed["tracker"])
    if "cfg" in parsed:
        bind_config(str(find_config(str(parsed["cfg"]))), tuple(parsed.get("settings", ())))


def check_cell(cell):
    """Parse the commands that are made of a cell, and bind what they name."""
    for words in words_of("\n".join(PAPERS["Paper"]("page", "", []).commands("Table 1", cell, "lists/cifar10", None))):
        check_command(words)


# Tests ------------------------------------------------------------------------------------------------------


def test_every_page_is_known():
    assert {path.stem for path in FOLDER.iterdir()} == {*ITEMS}


def test_no_table_or_figure_is_forgotten(check_all):
    def check(name):
        labels = {row[0] for row in rows(name)}
        whole = {re.sub(r" ?\(.*\)", "", label) for label in labels}
        items = {label for label in whole if re.match(r"(Table|Figure|Algorithm) ", label)}
        assert items == ITEMS[name]
        assert PARTS.get(name, set()) == {label for label in labels if re.search(r"\d\([a-z]\)$", label)}

    check_all(check, EVERY_PAGE)


def test_a_row_of_a_study_names_its_small_version():
    small = f"python benchmarks/study.py {STUDY} --cfg configs/studies/small_video/sce.yaml --lists "
    cells = [row[3] for row in rows("sce") if STUDY in row[3]]
    assert cells and all(f", small `{small}'lists/ucf101_6/split{{split}}'" in cell for cell in cells)
    for name in ITEMS:
        for row in rows(name):
            assert "small" not in row[5].split(":")[0] or "small `" in row[3] or row[3].startswith("left out"), row


def test_every_row_is_on_the_page(check_all):
    def check(name):
        keys = {key for row in PAPERS["read_rows"](FOLDER / f"{name}.yaml") for key in row}
        assert keys <= {*COLUMNS, "probe", "small", "lists", "splits"}
        assert [row for row in rows(name) if " | ".join(row[1:]) not in page(name)] == []

    check_all(check, EVERY_PAGE)


def test_a_row_has_all_columns(check_all):
    def check(_, row):
        assert all(row)
        _, _, expected, command, _, measured = row
        assert re.search(r"\d", expected) or expected.startswith("no number")
        if measured not in ("not run", "a definition"):
            source = re.search(r"\d.*\]\((?:\.\./)+(?:docs|examples|results|\w+\.md)", measured)
            assert source, "a number, and where it is from"
        if command.startswith("left out"):
            assert len(command.partition("left out: ")[2]) >= 30 and measured == "not run", "the reason"

    check_all(check, every_row())


def test_every_command_parses_and_binds(check_all):
    check_all(check_command, every_command())


def test_a_row_has_its_commands_in_order(check_all):
    """What a command reads, a list or a checkpoint, one before it has written; a folder has one writer."""

    def check(row, commands):
        assert bool(commands) != row[3].startswith("left out: ")
        written = []
        for config in {*re.findall(r"--cfg (configs/[\w/.-]+\.yaml)", "\n".join(commands))}:
            stated = "\n# Cost: " in Path(config).read_text()
            assert stated == any(line.startswith(f"# {config} as it is: ") for line in commands), config
        for line in "\n".join(commands).replace("\\\n", " ").splitlines():
            configs = [read(path) for path in re.findall(r"train --cfg (\S+)", line)]
            replaced = re.search(r"data\.(train|lists)=", line)
            lists = [
                str(config["data"]) for config in configs if not replaced and "moving_digits" not in config["data"]
            ]
            writes = re.findall(r"(?:--out |output=|^cp -r \S+ |^mkdir -p )([^\s']+)", line)
            writes = writes or [config["output"] for config in configs]
            reads = READ.findall(" ".join([line, *lists]))
            assert [
                path for path in reads if not any(path.startswith(f"{made}/") for made in written + writes)
            ] == [], line
            assert not {*writes} & {*written}, line
            written += writes

    every = {name: PAPERS["row_commands"](FOLDER / f"{name}.yaml") for name in ITEMS}
    check_all(check, {case: (row, every[name][int(case.split()[-1]) - 1]) for case, (name, row) in every_row().items()})


def test_other_pages_lead_here():
    pages = {"index.md": "papers", "results/reproduce.md": "../papers"}
    texts = {folder: (ROOT / "docs" / other).read_text(encoding="utf-8") for other, folder in pages.items()}
    assert [(n, folder) for n in ITEMS for folder, text in texts.items() if f"({folder}/{n}.yaml)" not in text] == []


# The checks themselves --------------------------------------------------------------------------------------

STUDY = "configs/studies/sce_video/lambda.yaml"


def test_a_cell_that_does_not_bind_is_found():
    for cell in (
        "`configs/pretrain/there_is_no_such_config.yaml`",
        "`configs/pretrain/sce_r50_imagenet.yaml` `method.coeficient=0.5`",
        "`configs/pretrain/sce_r50_imagenet.yaml` `method.coefficient=2`",
        "`configs/studies/sce_images/lambda.yaml` `data.no_such_key=1`",
        "`epochs=3` `configs/pretrain/sce_r50_imagenet.yaml`",
        "`config/pretrain/sce_r50_imagenet.yaml`",
        "`configs/toy/sce.yaml`, test `--protocol nearest`",
        "`configs/toy/sce.yaml`, test `--protocol knn n=5`",
        "`configs/toy/sce.yaml`, test `--protocols knn`",
        "`vidssl train --cfg configs/toy/sce.yaml method.queu=3`",
        "`vidssl teach --cfg configs/toy/sce.yaml`",
        "`vidssl retrieval --checkpoint C --out O`",
        "`python benchmarks/study.py configs/toy/sce.yaml --lists L --out O`",
        f"`python benchmarks/study.py {STUDY} --cfg configs/toy/byol.yaml --lists L --out O`",
        f"`python benchmarks/study.py {STUDY} --lists L`",
        f"`{STUDY}` `method.queue=0`",
        f"`python benchmarks/study.py {STUDY} --runs there_is_no_such_run --lists L --out O`",
        "`python benchmarks/study.py configs/studies/small_video --runs no_such --lists L --out O`",
    ):
        try:
            check_cell(cell)
        except (AssertionError, ConfigError, FileNotFoundError, KeyError, ValueError):
            continue
        pytest.fail(f"{cell} binds")
