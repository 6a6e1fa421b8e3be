"""The commands of an experiment of a paper, in order: its lists, pre-training, probes, tests, and the table.

They come from the headers of the configs that a row names, with the settings beside them. What a command reads, a list
or a checkpoint, is made first: by the header of a config, by a block of the page, or by the small version of a row.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
SMALL = "# The same on a small set, on a CPU:"
_CONFIG = re.compile(r"(?:configs|examples)/[\w/.-]+\.yaml")
_TOKEN = re.compile(r"""(?:[^\s'"$]|'[^']*'|"[^"]*"|\$\([^)]*\)|\$)+""")
_COMMAND = re.compile(r"(?:PYTHONPATH=\S+ )?(?:vidssl|torchrun|python|cp|mkdir|\(echo) ")
_PREPARES = re.compile(r"\bprepare[ _]|coloured_digits\.py|^cp |^mkdir ")
_TRANSFER = ("configs/linear/", "configs/finetune/", "configs/detection/", "examples/")
_LAST = "/checkpoints/last.pt"
_READ = re.compile(rf"\b(?:(?:lists|data)/[\w/{{}}.-]+|output/[\w/{{}}.-]+?(?:{_LAST}|\.csv)|output/tracks/\w+)")
_WIDTH = 100


class Paper:
    """Makes the commands of the rows of a page; a run that two rows have in common has one folder in both."""

    def __init__(self, name: str, blocks: str, small: Iterable[str]) -> None:
        self._name = name
        self._outputs: dict[tuple[str, ...], str] = {}
        self._rows: dict[str, int] = {}
        self._producers = {**_producers()}
        self._producers |= {_written(command): [command] for command in _in_blocks(blocks) if _written(command)}
        self._producers |= {_written(command): [command] for command in small}

    def commands(self, item: str, cell: str, lists: str | None, splits: str | None) -> list[str]:
        """Return the commands of a row; `lists` is the folder of the lists of its tests, `splits` those of its runs."""
        self._rows[item] = self._rows.get(item, 0) + 1
        row = f"output/{self._name}/{_slug(item)}_{self._rows[item]}"
        commands: list[str] = []
        for part in re.split(r"(?:, |^)small (?=`)", cell, maxsplit=1):
            steps = _Steps(self._output_of(row), lists, splits)
            for config, settings in _spans(part):
                steps.add(config, settings)
            if made := steps.finish():
                commands += [SMALL, *made] if commands else made
        commands = [*self._with_inputs(commands)]
        configs = dict.fromkeys(re.findall(rf"--cfg ({_CONFIG.pattern})", "\n".join(commands)))
        texts = [f"# {config} as it is: {text}" for config in configs if (text := header_cost(config))]
        costs = [fill(text, _WIDTH, subsequent_indent="#   ", break_long_words=False) for text in texts]
        return costs + commands

    def _output_of(self, row: str) -> Callable[[str, Sequence[str]], str]:
        """Name the folder of a run: that of its config, or with settings one for the first row that has them."""

        def output(config: str, settings: Sequence[str]) -> str:
            if not settings:
                return str(_read(config)["output"])
            taken = {*self._outputs.values()}
            free = next(name for n in range(1, 99) if (name := row + f"_{n}" * (n > 1)) not in taken)
            return self._outputs.setdefault((config, *settings), free)

        return output

    def _with_inputs(self, commands: Iterable[str], written: list[str] | None = None) -> Iterator[str]:
        written = [] if written is None else written
        for command in commands:
            for path in _paths_read(command):
                if not any(_inside(path, folder) for folder in written):
                    producers = [folder for folder in self._producers if _inside(path, folder)]
                    if producers:
                        folder = max(producers, key=len)
                        written.append(folder)
                        yield from self._with_inputs(self._producers[folder], written)
            written += [_written(line) for line in command.splitlines() if _written(line)]
            yield command


class _Steps:
    """The steps of a row: pre-training or a study, and what is done with its checkpoints."""

    def __init__(self, output: Callable[[str, Sequence[str]], str], lists: str | None, splits: str | None) -> None:
        self._output, self._lists, self._splits = output, lists, splits
        self._commands: list[str] = []
        self._body: list[str] = []
        self._runs: list[str] = []
        self._folder = ""  # of the pre-trained network; with a study that of a run of its loop
        self._results: list[str] = []

    def add(self, span: str, settings: Sequence[str]) -> None:
        """Add the commands of a config, of a command, or of the options of a test."""
        if span.startswith("--"):
            self._test(span)
        elif span.startswith("python benchmarks/study.py"):
            self._study(span)
        elif not _CONFIG.fullmatch(span):
            plug_in = re.search(r"--cfg (examples/\w+)/", span)
            self._add([(f"PYTHONPATH={plug_in[1]} " if plug_in else "") + " ".join(span.split())])
        elif "runs" in _read(span):
            command = next(line for line in header_commands(span) if f"study.py {span} " in f"{line} ")
            self._study(_joined(command, settings))
        elif span.startswith(_TRANSFER):
            self._transfer(span, settings)
        else:
            self._close()
            output = _setting(settings, "output") or self._output(span, settings)
            self._folder = output
            changed = [word for word in settings if not word.startswith("output=")]
            self._add(_training(span, changed, output if settings else None, None, self._splits))

    def finish(self) -> list[str]:
        """Return the commands, the table of what was tested last."""
        self._close()
        tables = [f"python benchmarks/report.py {' '.join(dict.fromkeys(self._results))}"] if self._results else []
        return self._commands + tables

    def _study(self, command: str) -> None:
        self._close()
        words = _TOKEN.findall(command)
        study, out = words[2], _written(command)
        names = words[words.index("--runs") + 1 :] if "--runs" in words else []
        names = [*_until_option(names)] or [str(name) for name in _read(study)["runs"]] if study.endswith("l") else []
        self._add([command])
        self._results.append(out)
        self._runs, self._folder = names, f"{out}/$run/split{_first_split(words)}"

    def _transfer(self, config: str, settings: Sequence[str]) -> None:
        init = _setting(settings, "init")
        if init is not None:
            self._close()
            self._folder = init.removesuffix(_LAST) if init.endswith(_LAST) else ""
        elif self._folder:
            init = f"{self._folder}{_LAST}"
        changed = [word for word in settings if not word.startswith(("init=", "output="))]
        as_in_header = init is None or any(f" init={init}" in f" {line}" for line in header_commands(config))
        output = _setting(settings, "output")
        if output is None and (changed or not as_in_header):
            output = self._beside(config) if self._folder else self._output(config, settings)
        self._add(_training(config, changed, output, init, self._splits))
        self._folder = self._folder or output or _read(config)["output"]

    def _beside(self, config: str) -> str:
        """Name a run that starts from the network of a folder: a folder in it."""
        name = f"{self._folder}/{config.split('/')[-2]}_{Path(config).stem}"
        taken = {_written(command) for command in self._commands + self._body}
        return next(text for n in range(1, 9) if (text := name + f"_{n}" * (n > 1)) not in taken)

    def _test(self, options: str) -> None:
        folder = f"{self._folder}/{Path(self._lists or 'lists').name}"
        lists = f"{self._lists}/test.csv --train-list {self._lists}/train.csv"
        options = " ".join(_quoted(word) for word in options.split())
        self._add([f"vidssl test {lists} --checkpoint {self._folder}{_LAST} {options} --out {folder}"])

    def _add(self, commands: Sequence[str]) -> None:
        loop = bool(self._runs) and "$run" in " ".join(commands)
        (self._body if loop else self._commands).extend(commands)
        for command in commands:
            tested = re.search(r"\bvidssl (test|retrieval) ", command) or "--splits" in command
            if tested and not loop:
                self._results.append(_written(command))

    def _close(self) -> None:
        """Write the loop over the runs of a study."""
        if self._body:
            body = "\n".join(f"  {line}" for command in self._body for line in wrapped(command).splitlines())
            runs = wrapped(f"for run in {' '.join(self._runs)}; do")
            self._commands.append(f"{runs}\n{body}\ndone")
        self._body, self._runs = [], []


@cache
def header_commands(config: str) -> tuple[str, ...]:
    """Return the commands in the header of a config, each in one line."""
    text = (ROOT / config).read_text(encoding="utf-8")
    header = "\n".join(re.match(r"(?:#.*\n)+", text)[0].splitlines())  # type: ignore[index]
    lines = [line.removeprefix("# ") for line in re.sub(r"\\\n#\s*", "", header).splitlines()]
    return tuple(re.sub(r"\s+# .*", "", line) for line in lines if _COMMAND.match(line))


def header_cost(config: str) -> str:
    """Return the cost that the header of a config states, "" without one."""
    stated = re.search(r"^# Cost: (.*\n(?:#   .*\n)*)", (ROOT / config).read_text(encoding="utf-8"), re.MULTILINE)
    return (
        "" if stated is None else re.sub(r"\s*\n(?:#\s*)?", " ", stated[1]).partition(" Computed, not run")[0].strip()
    )


def wrapped(command: str) -> str:
    """Break the lines of a command that is too long, before options and settings; a loop has its breaks."""
    if "\n" in command or command.startswith("#"):
        return command
    if " && " in command:
        return " && \\\n    ".join(map(wrapped, command.split(" && ")))
    lines, line = [], ""
    for word in re.findall(rf"(?:--[\w-]+ (?!--))?{_TOKEN.pattern}", command):
        if line and len(line) + len(word) > _WIDTH:
            lines.append(line)
            line = "   "
        line += f" {word}" if line else word
    return " \\\n".join([*lines, line])


def _training(
    config: str, settings: Sequence[str], output: str | None, init: str | None, splits: str | None
) -> list[str]:
    """Return the commands of a header from what comes before the training to its tests, for other settings."""
    content, commands = _read(config), [line for line in header_commands(config) if not _prepares(line)]
    trainings = [n for n, line in enumerate(commands) if f"train --cfg {config}" in line]
    last = trainings[1] if len(trainings) > 1 else len(commands)
    train = _TOKEN.findall(commands[trainings[0]])
    if output or settings or init is None:
        train = [word for word in train if not word.startswith(("output=", "init="))]
        train += [*settings, *([f"init={init}"] if init else []), *([f"output={output}"] if output else [])]
    tests = [
        line.replace(f"{content['output']}/", f"{output or content['output']}/")
        for line in commands[trainings[0] + 1 : last]
    ]
    of_header, train_list = _lists(content), _setting(settings, "data.train")
    if train_list and of_header:
        tests = [line.replace(f"{Path(of_header[0][1]).parent}/", f"{Path(train_list).parent}/") for line in tests]
    if query := _setting(settings, "evaluate.query"):
        tests = [re.sub(r"(vidssl test) \S+", rf"\1 {query}", line) for line in tests]
    line = " ".join(_quoted(word) for word in train)
    line = re.sub(r"--splits [\d ]+", f"--splits {splits} ", line) if splits else line
    return [*commands[: trainings[0]], line, *tests]


@cache
def _producers() -> Mapping[str, list[str]]:
    """Return the commands in the headers of all configs, by the folder that they write: lists and runs.

    Raises:
        ValueError: Headers write one folder of lists by different commands.
    """
    producers: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")]):
        config = str(path.relative_to(ROOT))
        commands = header_commands(config)
        for line in filter(_written, filter(_prepares, commands)):
            if producers.setdefault(_written(line), [line]) != [line]:
                raise ValueError(f"{config} writes {_written(line)} by another command than other headers: {line}")
        if any(f"train --cfg {config}" in line for line in commands) and "{split}" not in str(_read(config)):
            producers[_read(config)["output"]] = _training(config, (), None, "", None)
    return producers


def _prepares(command: str) -> bool:
    """Tell whether a command writes lists; those that check and copy videos are up to the reader."""
    return bool(_PREPARES.search(command) or re.match(r"vidssl (check|shrink) |\(echo", command))


def _spans(cell: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the configs, commands and options of a cell, each with the settings after it."""
    spans: list[tuple[str, list[str]]] = []
    for span in re.findall(r"`([^`]+)`", cell):
        if _CONFIG.fullmatch(span) or re.match(r"--|vidssl |python ", span):
            spans.append((span, []))
        elif not spans:
            raise ValueError(f"{span} comes before the config that it overrides: {cell}")
        else:
            spans[-1][1].append(" ".join(span.split()))
    yield from spans


def _in_blocks(markdown: str) -> Iterator[str]:
    """Yield the commands of the code blocks of a page that write lists or tracks."""
    for block in re.findall(r"```sh\n(.*?)```", markdown, re.DOTALL):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        yield from (
            re.sub(r"\s+# .*", "", line) for line in lines if _prepares(line) or line.startswith("vidssl track")
        )


def _paths_read(command: str) -> list[str]:
    """Return the lists, tracks and checkpoints that a command reads, those of its config too."""
    written = {_written(line) for line in command.splitlines()} if "study.py" not in command else set()
    paths = [path for path in _READ.findall(command) if path not in written and "$run" not in path]
    for config in re.findall(r"train --cfg (\S+)", command):
        content = _read(config)
        if "moving_digits" not in content.get("data", {}):  # rendered by the training
            paths += [
                path for key, path in _lists(content) if f"{key}=" not in command and "data.lists=" not in command
            ]
        paths += [] if " init=" in command else _READ.findall(str(content.get("init", "")))
    return [*dict.fromkeys(paths)]


def _lists(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lists of a config, each with the setting that replaces it."""
    keys = ("data.train", "data.lists", "evaluate.gallery", "evaluate.query", "evaluate.list")
    values = {key: str(content.get(key.split(".")[0], {}).get(key.split(".")[1], "")) for key in keys}
    return [(key, path) for key, text in values.items() for path in _READ.findall(text)]


def _written(command: str) -> str:
    """Return the folder that a command writes, or nothing."""
    if match := re.search(r"(?:--out |\boutput=|^cp -r \S+ |^mkdir -p )([^\s']+)", command):
        return match[1]
    config = re.search(r"train --cfg (\S+)", command)
    return str(_read(config[1])["output"]) if config else ""


def _setting(settings: Iterable[str], key: str) -> str | None:
    return next((word.removeprefix(f"{key}=") for word in settings if word.startswith(f"{key}=")), None)


def _joined(command: str, settings: Sequence[str]) -> str:
    return " ".join([command, *map(_quoted, settings)])


def _quoted(word: str) -> str:
    return f"'{word}'" if re.search(r"[\s\[{*]", word) and word[0] not in "'\"" and "$(" not in word else word


def _until_option(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("--"):
            return
        yield word


def _first_split(words: Sequence[str]) -> str:
    return words[words.index("--splits") + 1] if "--splits" in words else "1"


def _inside(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


@cache
def _read(config: str) -> Any:
    return YAML(typ="safe").load(ROOT / config)
