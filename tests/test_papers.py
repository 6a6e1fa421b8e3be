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
CONFIG = re.compile(r"(?:configs|examples)/[\w/.-]+\.yaml")
SETTING = re.compile(r"[a-z_]+(?:\.\w+)*=.+", re.DOTALL)
COMMAND = re.compile(r"(?:^|\s)(?:vidssl|python (?:benchmarks|examples)/\w+\.py) .*")
CHECKPOINT = re.compile(r"output/[^\s$'`]+/checkpoints/last\.pt")


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


def commands(name):
    """Give the commands of a page, those of its code blocks and those in its tables, as words."""
    found = [span for row in rows(name) for span in re.findall(r"`([^`]+)`", row[3]) if COMMAND.fullmatch(span)]
    for block in re.findall(r"```sh\n(.*?)```", page(name), re.DOTALL):
        found += [line for line in block.replace("\\\n", " ").splitlines() if COMMAND.search(line.partition("#")[0])]
    words = [shlex.split(line, comments=True) for line in found]
    return [line[line.index("python" if "python" in line else "vidssl") :] for line in words]


def every_command():
    return {f"{name}, command {n}": (words,) for name in ITEMS for n, words in enumerate(commands(name), 1)}


EVERY_PAGE = {name: (name,) for name in ITEMS}


# Checking what they name ------------------------------------------------------------------------------------


def study_of(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return YAML(typ="safe").load(text) if "\nruns:\n" in text else None


@cache
def bind_config(path, settings=(), config=None):
    """Bind a config, or all runs of a study, perhaps with another config; one for several splits as that of the first.

    Returns the folders that the runs write to.
    """
    study = study_of(path)
    runs = [()] if study is None else study["runs"].values()
    path = path if study is None else config or study["config"]
    text = (ROOT / path).read_text(encoding="utf-8").split("\noutput:", 1)[1]
    split = 1 if "{split}" in " ".join([text, *settings]) else None
    return {bound(ROOT / path, [*own, *settings], split).output for own in runs}


def bound(path, settings, split):
    """Bind a config, of an app too."""
    return train.bind_config(read(path, settings), str(path))[0] if split is None else load_run(path, settings, split)


def parsed_command(words):
    """Parse `vidssl …` with the options of its command; a mistake is a ConfigError."""
    job, parser, arguments = parser_of(words[1], words[2:])
    return parse(parser, job.signature, arguments)


def check_protocols(words):
    for chosen in protocol_choices(words)[0]:
        assert chosen["name"] in PROTOCOLS
        bind(PROTOCOLS[chosen["name"]].Config, {key: value for key, value in chosen.items() if key != "name"}, "test")


def check_command(words):
    """Parse a command and bind what it names; returns whether that is a config."""
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
            return True
        content = study_of(study)
        assert content is not None and {*runs} <= {*content["runs"]}
        bind_config(study, settings, named)
        return True
    if words[0] == "python":
        return False
    parsed = parsed_command(words)
    if "protocol" in parsed:
        check_protocols(parsed["protocol"])
    if "tracker" in parsed:
        tracker_settings(parsed["tracker"])
    if "cfg" not in parsed:
        return False
    bind_config(str(find_config(str(parsed["cfg"]))), tuple(parsed.get("settings", ())))
    return True


def check_cell(cell):
    """Bind all configs of a cell, each with the settings beside it, and its commands; returns how many bind."""
    configs, bound = [], 0
    for span in re.findall(r"`([^`]+)`", cell):
        if CONFIG.fullmatch(span):
            configs.append((span, []))
        elif COMMAND.fullmatch(span):
            bound += check_command(shlex.split(span))
        elif span.startswith("--"):
            check_protocols(parsed_command(shlex.split(f"vidssl test LIST --checkpoint C --out O {span}"))["protocol"])
        else:
            assert SETTING.fullmatch(span), f"{span} is neither a config, a setting, a command nor options of a test"
            assert configs, f"{span} comes before the config that it overrides"
            configs[-1][1].append(span)
    for path, settings in configs:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        bind_config(path, tuple(settings))
    return bound + len(configs)


# Tests ------------------------------------------------------------------------------------------------------


def test_every_page_is_known():
    assert {path.stem for path in FOLDER.iterdir()} == {*ITEMS}


def test_no_table_or_figure_is_forgotten(check_all):
    def check(name):
        labels = {row[0] for row in rows(name)}
        whole = {re.sub(r" ?\(.*\)", "", label) for label in labels}
        given = {label for label in whole if re.match(r"(Table|Figure|Algorithm) ", label)}
        assert given == ITEMS[name]
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
        assert {key for row in PAPERS["read_rows"](FOLDER / f"{name}.yaml") for key in row} <= {
            *COLUMNS,
            "probe",
            "small",
        }
        assert [" | ".join(row) in page(name) for row in rows(name)] == [True] * len(rows(name))

    check_all(check, EVERY_PAGE)


def test_a_row_has_all_columns(check_all):
    def check(_, row):
        assert all(row)
        _, _, expected, _, _, measured = row
        assert re.search(r"\d", expected) or expected.startswith("no number")
        if measured not in ("not run", "a definition"):
            source = re.search(r"\d.*\]\((?:\.\./)+(?:docs|examples|results|\w+\.md)", measured)
            assert source, "a number, and where it is from"

    check_all(check, every_row())


def test_a_row_binds_or_is_left_out_for_a_reason(check_all):
    def check(_, row):
        cell = row[3]
        if cell.startswith("left out: "):
            assert len(cell.removeprefix("left out: ")) >= 30 and row[5] == "not run"
        else:
            assert check_cell(cell) >= 1, "the row names no config"

    check_all(check, every_row())


def test_every_command_parses_and_binds(check_all):
    check_all(check_command, every_command())


def test_checkpoints_are_those_of_a_config_or_of_a_command(check_all):
    """Of a config in the repository, or of the page: by `output=` or `--out`."""
    of_configs = {
        re.search(r"^output: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)[1]
        for path in (ROOT / "configs").rglob("*.yaml")
        if study_of(path) is None
    }

    def check(name):
        text = page(name)
        made = of_configs | {*re.findall(r"(?:output=|--out )(output/[^\s'`]+)", text)}
        known = tuple(f"{folder}/" for folder in made)
        assert [found for found in CHECKPOINT.findall(text) if not found.startswith(known)] == []

    check_all(check, EVERY_PAGE)


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
            bound = check_cell(cell)
        except (AssertionError, ConfigError, FileNotFoundError):
            continue
        pytest.fail(f"{cell} binds: {bound}")


def test_a_cell_without_a_config_is_found():
    assert check_cell("settings of the paper") == 0
    assert check_cell("`vidssl extract lists/x.csv --checkpoint C --out O`") == 0
    assert check_cell("`configs/toy/sce.yaml` `steps=3`") == 1
