"""Config files: what YAML means, what is refused, and that every mistake is named, all at once."""

import json
import re
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, create_model

from vidssl.base.config import Settings, bind, build, choice, config_differences, dump, read
from vidssl.base.errors import ConfigError
from vidssl.base.registry import Registry
from vidssl.engine.run_config import load_run

SHAPES: Registry[Any] = Registry("shape", "vidssl.base.errors")


@SHAPES.register("circle")
class Circle:
    class Config(Settings):
        radius: float = 1.0

    def __init__(self, config, *parts):
        self.config, self.parts = config, parts


@SHAPES.register("square")
class Square(Circle):
    class Config(Settings):
        edge: float = 1.0
        colours: tuple[str, ...] = ()


class Inner(Settings):
    rate: float
    title: str = ""
    name: str | None = None
    pair: tuple[float, float] = (0.9, 0.99)


class _Outer(Settings):
    steps: int = Field(ge=1)
    mode: Literal["fast", "slow"] = "fast"
    flag: bool = False
    inner: Inner
    maybe: Inner | None = None
    items: tuple[Inner, ...] = ()


Outer = create_model("Outer", __base__=_Outer, shapes=(tuple[choice(SHAPES), ...], ()))
GOOD = """
steps: 3
inner: {rate: 1e-6}
items:
  - {rate: 1}
  - {rate: 2, name: two}
shapes:
  - {name: circle, radius: 2.5}
  - {name: square, colours: [red, blue]}
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def message(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return str(caught.value)


def load(path, *overrides):
    return bind(Outer, read(path, overrides), str(path))


def test_15_yaml_1_2(write):
    tree = read(write("a: 1e-6\nb: 1E3\nc: no\nd: on\ne: 0o17\nf: 017\ng: 12:30:45\nh: ~\ni: true\nj: 2.\n"))
    assert tree == {
        "a": 1e-6, "b": 1000.0, "c": "no", "d": "on", "e": 15, "f": 17, "g": "12:30:45", "h": None, "i": True, "j": 2.0
    }  # fmt: skip
    assert isinstance(tree["a"], float)


def test_a_good_file(write):
    run = load(write(GOOD))
    assert run.inner.rate == 1e-6 and run.items[1].name == "two" and isinstance(run.items[0].rate, float)
    assert run.shapes[0].radius == 2.5 and run.shapes[1].colours == ("red", "blue")
    made = build(SHAPES, run.shapes[1], "part")
    assert type(made) is Square and made.config is run.shapes[1] and made.parts == ("part",)
    with pytest.raises(ValueError, match="frozen"):
        run.steps = 4


def test_dumped_configs_are_read_back(write):
    run = load(write(GOOD))
    again = load(write(dump(run), "again.yaml"))
    assert again == run and dump(again) == dump(run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: 1\nsteps: 2\n", "duplicate key"),
        ("a: {b: 1, b: 2}\n", "duplicate key"),
        ("a: [1, 2\n", "is not YAML"),
        ("- 1\n- 2\n", "holds list, not keys and values"),
        ("just words\n", "holds str, not keys and values"),
        ("", "holds NoneType, not keys and values"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
    ],
)
def test_files_that_are_not_a_config(text, said, write):
    raised = message(read, write(text))
    assert said in raised and "run.yaml" in raised and "\n" not in raised


def test_bytes_that_are_not_text(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"a: \xff\xfe\x00")
    assert "is not YAML" in message(read, path)


def test_a_file_that_is_missing(tmp_path):
    assert message(read, tmp_path / "no.yaml").endswith("No such file or directory; give a YAML file")
    assert "Is a directory" in message(read, tmp_path)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:pathlib.Path.touch", "!!python/object/new:os.system", "!!python/name:os.system"]
)
def test_15_tags_make_no_objects(tag, write, tmp_path):
    target = tmp_path / "executed"
    raised = message(read, write(f"a: {tag} ['{target}']\n"))
    assert "is not YAML" in raised and not target.exists()
    assert "valid integer" in message(load, write(GOOD), f"steps={tag} ['{target}']") and not target.exists()


def test_15_an_unknown_key_and_the_nearest_one(write):
    path = write(GOOD.replace("rate: 1e-6", "rate: 1, raet: 2"))
    raised = message(load, path)
    said = "inner.raet: unknown key (did you mean 'rate'?); there are: name, pair, rate, title"
    assert raised == f"{path}: {said}"
    assert "maybe.rte: unknown key (did you mean 'rate'?)" in message(load, write(GOOD), "maybe={rate: 1, rte: 1}")
    assert "items.1.nam: unknown key (did you mean 'name'?)" in message(load, write(GOOD), "items.1.nam=x")
    raised = message(load, write(GOOD), "shapes.1.color=x")
    assert "shapes.1.color: unknown key (did you mean 'colours'?); there are: colours, edge, name" in raised


def test_an_override_of_the_name_of_a_choice_alone(write):
    """The keys that are left over are unknown ones of the new entry."""
    path = write(GOOD.replace("colours:", "edge: 2, colours:"))
    raised = message(load, path, "shapes.1.name=circle", "shapes.1.raduis=2")
    assert raised == (
        f"{path}: 3 mistakes: shapes.1.edge: unknown key; there are: name, radius; "
        "shapes.1.colours: unknown key; there are: name, radius; "
        "shapes.1.raduis: unknown key (did you mean 'radius'?); there are: name, radius"
    )
    assert load(path, "shapes.1={name: circle}").shapes[1].radius == 1.0


def test_15_all_mistakes_at_once(write):
    path = write("stepz: 3\ninner: {rate: fast, pair: [1, 2, 3]}\nmode: medium\nflag: 1\n")
    said = message(load, path).removeprefix(f"{path}: 6 mistakes: ")
    messages = {text.split(": ")[0]: text for text in re.split("; (?!there are)", said)}
    assert set(messages) == {"stepz", "steps", "inner.rate", "inner.pair", "mode", "flag"}
    assert "did you mean 'steps'?" in messages["stepz"] and "is required" in messages["steps"]
    assert 'valid number, got "fast"' in messages["inner.rate"] and "'fast' or 'slow'" in messages["mode"]


def test_15_a_mistake_inside_of_a_list_is_one_mistake():
    configs = Path(__file__).parents[2] / "configs"
    with pytest.raises(ConfigError, match=r"moco\.yaml: evaluate\.protocols\.0\.name: no 'kn' .*knn"):
        load_run(configs / "toy" / "moco.yaml", ["evaluate.protocols=[{name: kn}]"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("steps=2.5", "steps: Input should be a valid integer, got 2.5"),
        ("steps='3'", 'steps: Input should be a valid integer, got "3"'),
        ("steps=0", "steps: Input should be greater than or equal to 1, got 0"),
        ("flag=yes", "flag: Input should be a valid boolean"),
        ("inner=null", "inner: "),
        ("inner.rate=null", "inner.rate: Input should be a valid number, got null"),
        ("items={a: 1}", "items: "),
        ("inner.rate.x=1", "inner.rate: Input should be a valid number"),
    ],
)
def test_15_wrong_types(override, said, write):
    assert said in message(load, write(GOOD), override)


@pytest.mark.parametrize("value", ["!!set {a, b}", "!!binary aGVsbG8="])
def test_what_yaml_has_and_settings_have_not(value, write):
    raised = message(load, write(GOOD + f"mode: {value}\n"))
    assert "use numbers, strings, lists and mappings only" in raised and "JSON" not in raised


def test_a_date_in_a_file_is_text(write):
    assert load(write(GOOD.replace("two", "2024-11-28"))).items[1].name == "2024-11-28"
    assert load(write(GOOD.replace("two", "2024-11-28 12:30:45"))).items[1].name == "2024-11-28 12:30:45"


# Where text is wanted: names of folders as people have them, and what else YAML is.
TEXTS = [
    *("exp #3", "runs/try 2 # big lr", "2024-11-28", "2024-11-28T12:30:45Z", "12:30:45", "20241128", "2024_11_28"),
    *("on", "yes", "true", "007", "0x10", "1e5", "1e-3", "1.0", "-1", ".5", ".inf", ".nan", "3 # runs", "5#"),
    *("a=b.pt", "a: b", "a:", "- a", "? a", "*a", "&a b", "!a b", "!!int 3", "@a", "`a`", "%a", "| a", "> a", "a, b"),
    *("[cam1] day", "{split}.csv", "[a] [b]", "[1", "{a", "'a' b", '"a" b', "don't", 'a"b', "'", '"', "\\", "a\\b"),
    *("---", "...", "é 走", "a\nb", " a ", "x" * 300, "-", "#", "# a", "a\t#b", "<<", "=", "C:\\runs", "../a"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_value_of_a_setting_that_is_text_is_what_was_typed(text, write):
    run = load(write(GOOD), f"inner.title={text}", "items.1={rate: 1, title: x}", f"items.1.title={text}")
    assert run.inner.title == run.items[1].title == text
    assert load(write(GOOD), f"inner.name={text}").inner.name == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("'a #b'", "a #b"), ('"a #b"', "a #b"), ("''", ""), ("'3'", "3"), ('"null"', "null"), ("'it''s'", "it's")),
        *((r'"a\tb"', "a\tb"), (" 'a' ", "a")),
    ],
)
def test_quoted_text_is_what_the_quotes_hold(text, value, write):
    assert load(write(GOOD), f"inner.name={text}").inner.name == value


@pytest.mark.parametrize(
    ("override", "value"),
    [
        *(("inner.rate=1e-3", 1e-3), ("inner.rate= 2 ", 2.0), ("inner.rate=1", 1.0), ("steps=0x10", 16)),
        *(("flag=true", True), ("maybe=null", None), ("maybe=", None), ("maybe=~", None)),
        ("inner.pair=[0.5, 0.6]", (0.5, 0.6)),
        ("shapes=[{name: square, colours: [red, 2024-11-28]}]", "2024-11-28"),
    ],
)
def test_other_settings_are_yaml(override, value, write):
    run = load(write(GOOD), override)
    shape = run.shapes[0].colours[1] if len(run.shapes) == 1 else None
    assert value in (run.inner.rate, run.steps, run.inner.pair, shape, run.flag, run.maybe)


@pytest.mark.parametrize("override", ["steps=3 # runs", "inner.rate=0.1 # big", "flag=true # x", "steps=[1", "maybe=5"])
def test_a_number_with_more_behind_it_is_none(override, write):
    raised = message(load, write(GOOD), override)
    assert "mistakes" not in raised and json.dumps(override.partition("=")[2]).strip('"') in raised


# Small files of great trees ---------------------------------------------------------------------------------


def bomb(levels, width=9):
    """Aliases of aliases: width ** levels texts."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join([GOOD, *lines])


GREAT = {
    "aliases": (bomb(7), "characters and values, aliases (*name) written out"),
    "more": (bomb(60), "characters and values, aliases (*name) written out"),
    "of mappings": (bomb(7).replace("[*", "{? *").replace("]", "}"), "YAML"),
    "of a long text": (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 20)}]", "1,000,000 characters and values"),
    "merges": ("a0: &a0 {x: 1}\n" + "\n".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)), "written out"),
    "of itself": ("a: &a [*a]", "stands for nothing before it, or for itself"),
    "inside itself": ("a: &a {b: [1, {c: *a}]}", "stands for nothing before it, or for itself"),
    "of nothing": ("a: *b", "stands for nothing before it, or for itself"),
    "brackets": ("a: " + "[" * 10_000, "is nested deeper than 100 lists and mappings"),
    "closed brackets": ("a: " + "[" * 10_000 + "]" * 10_000, "is nested deeper than 100 lists and mappings"),
    "braces": ("{a: " * 10_000, "is nested deeper than 100 lists and mappings"),
    "dashes": ("a:\n  " + "- " * 5_000, "is nested deeper than 100 lists and mappings"),
    "long": ("a: 1\n" * 100_000, "is larger than 256 KiB"),
}  # fmt: skip


@pytest.mark.parametrize("name", GREAT)
def test_small_texts_that_stand_for_great_trees_are_refused(name, write):
    text, said = GREAT[name]
    start = time.process_time()
    raised = message(read, write(text))
    assert said in raised and "\n" not in raised and raised.startswith(str(write(text))) and len(raised) < 500
    if len(text) < 100_000 and "\n" not in text:
        raised = message(load, write(GOOD), f"inner={text.removeprefix('a: ')}")
    assert time.process_time() - start < 20


def test_aliases_of_a_usual_size_are_read(write):
    tree = read(write("a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\nc: &b 2\nd: *b"))
    assert tree == {"a": {"x": 1}, "b": {"x": 1, "y": [{"x": 1}, {"x": 1}]}, "c": 2, "d": 2}


def test_no_file_of_any_size_fills_the_memory():
    assert "is larger than 256 KiB" in message(read, "/dev/zero")


def test_a_tree_that_refers_to_itself_is_refused():
    """A pickle can hold one."""
    part: Any = ["x"] * 10
    for _ in range(12):
        part = [part] * 10
    endless: Any = []
    endless.append(endless)
    for tree in ({"steps": part}, {"steps": endless}):
        assert "config of a.pt" in message(bind, Outer, tree, "config of a.pt")


def test_choices_by_name(write):
    path = write(GOOD)
    assert "shapes.0: needs a 'name'" in message(load, path, "shapes.0={radius: 1}")
    raised = message(load, path, "shapes.0.name=sqare")
    assert "shapes.0.name: no 'sqare' (did you mean 'square'?); there are: circle, square" in raised
    raised = message(load, path, "shapes.0.radius=big", "shapes.1.edge=[]")
    assert "shapes.0.radius: " in raised and "shapes.1.edge: " in raised and "2 mistakes" in raised


def test_overrides(write):
    run = load(
        write(GOOD),
        "steps=7",
        "inner.rate=2e-3",
        "items.1.rate=5",
        "shapes.0={name: square, edge: 4}",
        "maybe.rate=1",
        "inner.name='a=b'",
        "inner.pair=[0.5, 0.6]",
    )
    assert (run.steps, run.inner.rate, run.items[1].rate, run.items[0].rate) == (7, 2e-3, 5.0, 1.0)
    assert run.shapes[0].edge == 4.0 and run.maybe.rate == 1.0
    assert run.inner.name == "a=b" and run.inner.pair == (0.5, 0.6)
    assert load(write(GOOD), "steps=7", "steps=8").steps == 8


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("steps", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("items.2.rate=1", "'2' is not an index of a list of 2 (from 0)"),
        ("items.2={rate: 1}", "'2' is not an index of a list of 2 (from 0)"),
        ("items.-1.rate=1", "'-1' is not an index of a list of 2"),
        ("items.first.rate=1", "'first' is not an index of a list of 2"),
    ],
)
def test_bad_overrides(override, said, write):
    raised = message(load, write(GOOD), override)
    assert said in raised


def test_differences_name_the_setting_and_both_values():
    one = {"a": 1, "b": {"c": [1, 2], "d": None}, "views": [{"size": 2}, {"size": 3}], "gone": 0}
    other = {"a": 1, "b": {"c": [1, 3], "d": None}, "views": [{"size": 2}, {"size": 4}], "new": [{}]}
    assert config_differences(one, one) == []
    assert config_differences(one, other) == [
        ("b.c", [1, 2], [1, 3]),
        ("views.1.size", 3, 4),
        ("gone", 0, None),
        ("new", None, [{}]),
    ]
