"""A run goes on only with the code of a user that it was trained with: in each kind of plug-in, and what it imports."""

import importlib
import json
import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import vidssl
from vidssl.base.errors import CheckpointError, VidsslError
from vidssl.base.plugins import changed_files, code_of, own_code
from vidssl.base.registry import _REGISTRIES
from vidssl.data.dataset import ClipDataset
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

TOYS = Path(__file__).parents[2] / "configs" / "toy"
HELPER = '''"""Constants of a plug-in."""

SCALE = 1.0  # of nothing


def scaled(x):
    """Multiply."""
    return x * SCALE
'''
# The same code: comments, docstrings, layout and lines differ.
SAME = """# Copyright: nobody.


SCALE = (
    1.0
)
def scaled(x):
    # a comment
    '''Multiply, see the paper.'''

    return (x * SCALE)
"""
PLUG_INS = {
    "method": """
from vidssl.methods.base import METHODS
from vidssl.methods.supervised import Supervised
@METHODS.register("of_a_user")
class Own(Supervised):
    def forward(self, batch):
        return {name: scaled(value) for name, value in super().forward(batch).items()}
""",
    "recipe": """
from vidssl.transforms import RECIPES, Recipe, center_crop
from vidssl.transforms.recipes import ViewSettings
@RECIPES.register("of_a_user")
class Own(Recipe):
    class Config(ViewSettings):
        pass
    def __call__(self, frames, generator):
        return [center_crop(frames, self.config.size, self.config.size)]
""",
    "data set": """
from vidssl.data.dataset import ClipDataset
ClipDataset.read_mask = lambda path, height, width: scaled(1)
""",
}
SETTINGS = {"method": ["method.name=of_a_user"], "recipe": ["data.views=[{name: of_a_user, size: 24}]"], "data set": []}


def forget():
    """Let the modules be imported again, as in another process."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("of_users", "beside", "single")]:
        del sys.modules[name]
    for registry in _REGISTRIES:
        registry._entries.pop("of_a_user", None)
    ClipDataset.read_mask = None


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package with a helper; the working folder is that of a user, who has it on the path."""
    folder = tmp_path / "code" / "of_users"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # that of a file of the same second and size is taken for it
    yield folder
    forget()


@pytest.fixture
def start(package, digits, tmp_path):
    """Train the toy of a plug-in until a step, as a process of its own: `start("method", 2)`."""

    def run(kind, until=None, *settings, output="run"):
        forget()
        if kind in PLUG_INS:
            (package / "plug_in.py").write_text("from .helper import scaled\n" + PLUG_INS[kind])
        where = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
        overrides = ["imports=[of_users.plug_in]", *where, f"output={tmp_path / output}", "steps=3", *SETTINGS[kind]]
        if "imports=[]" in settings:
            __import__("of_users.plug_in")
        return train(load_run(TOYS / "supervised.yaml", [*overrides, *settings]), until)

    return run


@pytest.mark.parametrize("kind", [kind for kind in PLUG_INS if kind != "method"])
def test_changed_code_of_every_kind_of_plug_in_is_refused(kind, start, package):
    start(kind, 1)
    (package / "helper.py").write_text(HELPER.replace("1.0", "2.0"))
    with pytest.raises(CheckpointError, match=r"helper\.py changed since"):
        start(kind, 2)


def test_changed_code_of_a_plug_in_is_refused(start, package, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    helper, kind = package / "helper.py", "method"
    start(kind, 1)
    helper.write_text(SAME)
    start(kind, 2)  # comments, docstrings, lines and layout do not count
    assert "code" not in caplog.text
    helper.write_text(HELPER.replace("1.0", "2.0"))
    saved = sorted((tmp_path / "run/checkpoints").glob("*.pt"))
    with pytest.raises(CheckpointError) as refused:
        start(kind)
    assert str(refused.value) == (
        f"{tmp_path}/run was trained with other code up to step 2: {helper} changed since; "
        "choose another output, or go on with it: checkpoint.changed_code=true"
    )
    assert sorted((tmp_path / "run/checkpoints").glob("*.pt")) == saved
    start(kind, None, "checkpoint.changed_code=true")
    assert "helper.py changed since; it goes on with the new code" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [(x["step"], x["changed_code"]) for x in lines if "changed_code" in x] == [(2, str(helper))]
    assert "changed_code: true" in (tmp_path / "run/config.yaml").read_text()
    last = torch.load(tmp_path / "run/checkpoints/last.pt", weights_only=True)
    assert last["changed_code"] == {2: str(helper)} and last["step"] == 3
    start(kind)  # finished, with the code of now
    helper.write_text(HELPER.replace("1.0", "3.0"))
    with pytest.raises(CheckpointError, match=r"up to step 3: .*helper\.py changed since"):
        start(kind)


def test_code_that_registers_itself_counts_without_imports(start, package):
    """As of a program that imports its modules, and then calls `vidssl.train`."""
    start("method", 1, "imports=[]")
    (package / "helper.py").write_text(HELPER.replace("1.0", "2.0"))
    with pytest.raises(CheckpointError, match=r"helper\.py changed since"):
        start("method", 2, "imports=[]")


# Which files --------------------------------------------------------------------------------------------------

FILES = {
    "of_users/__init__.py": "",
    "of_users/a.py": "from .inner import b\nimport of_users.c, os\ndef f():\n    from .late import x\n",
    "of_users/inner/__init__.py": "from . import *\n",
    "of_users/inner/b.py": "from ..d import x as y\nimport beside\n",
    "of_users/c.py": "import numpy, torch, vidssl\n",
    "of_users/d.py": "from . import data\nfrom of_users import missing\n",
    "of_users/data.py": "",
    "of_users/late.py": "x = 1\n",
    "of_users/unused.py": "",
    "beside.py": "import of_users.a\n",
    "single.py": "import beside\n",
    "of_users/broken.py": "def f(:\n",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


ALL = {"beside", "of_users", *(f"of_users.{name}" for name in ("a", "c", "d", "data", "inner", "inner.b", "late"))}


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["of_users.a"], ALL),
        (["single"], ALL | {"single"}),
        (["of_users.unused"], {"of_users", "of_users.unused"}),
        (["of_users.broken"], {"of_users", "of_users.broken"}),
        (["of_users.c", "vidssl.losses", "torch.nn", "no_such.x", "", "sys"], {"of_users", "of_users.c"}),
        (["sklearn.svm"], {"sklearn", "sklearn.svm"}),  # of libraries what is named only
        (["functools"], {"functools"}),
    ],
)
def test_which_modules_are_the_code(named, expected, files):
    assert own_code(named).keys() == expected
    assert not {"of_users.a", "beside"} & sys.modules.keys(), "no code runs"


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("x = 1\ny = 2\n", "\n\n# why\nx = 1  # one\n\ny = 2\n", True),
        ("def f(a):\n    return a\n", "def f( a ):\n    'Doc.'\n    return (a)\n", True),
        ("class A:\n    x: int = 1\n", 'class A:\n    """Doc."""\n\n    x: int = 1\n    """Of x."""\n', True),
        ("x = 'a'\n", 'x = "a"\n', True),
        ("x = 1\n", "x = 1.0\n", False),
        ("x = 1\ny = 2\n", "y = 2\nx = 1\n", False),
        ("x = '# a'\n", "x = '# b'\n", False),
        ("def f():\n    return 'Doc.'\n", "def f():\n    'Doc.'\n", False),
        ("x = [\n    1,\n    2,\n]\n", "x = [1, 2]\n", True),
    ],
)
def test_what_is_the_same_code(before, after, same, files):
    (files / "single.py").write_text(before)
    first = own_code(["single"])
    (files / "single.py").write_text(after)
    assert changed_files(first, own_code(["single"])) == ([] if same else [str(files / "single.py")])


def test_changes_are_named_by_file_or_module(files):
    before = own_code(["of_users.a"])
    (files / "of_users/d.py").unlink()
    (files / "of_users/late.py").write_text("x = 2\n")
    data, late = (str(files / f"of_users/{name}.py") for name in ("data", "late"))
    # d is gone, data is not imported any more.
    assert changed_files(before, own_code(["of_users.a"])) == ["of_users.d", data, late]


def test_requests_of_results_have_the_same_code(files):
    """As `vidssl test` and `extract` ask for results: of a class whose module imports others."""
    entry = type("Own", (), {"__module__": "of_users.a"})
    before = code_of(entry)
    (files / "of_users/d.py").write_text("from . import data\nfrom of_users import missing  # there is none\n")
    assert code_of(entry) == before and re.fullmatch("[0-9a-f]{64}", before["code"])
    (files / "of_users/data.py").write_text("x = 1\n")
    assert code_of(entry) != before
    assert code_of(torch.nn.Linear, train, None) == {}


def test_results_are_of_the_code_of_now(start, package, digits, tmp_path):
    """`vidssl test` of a network of a user, of its classifier, and with a protocol: what they import counts."""
    checkpoint, lists = start("method", 1).resolve(), digits / "motion"
    asked = {"train_list": lists / "train.csv", "protocol": ["accuracy"], "out": tmp_path / "test", "progress": False}
    options = {"imports": ["of_users.plug_in"], "clips": 1, "crops": 1, "workers": 0, "device": "cpu"}

    def measured():
        forget()
        vidssl.test(checkpoint, lists / "test.csv", **asked, **options)
        return (tmp_path / "test/results.json").stat().st_mtime_ns

    first = measured()
    (package / "helper.py").write_text(SAME)
    assert measured() == first
    (package / "helper.py").write_text(HELPER.replace("1.0", "2.0"))
    assert measured() > first


def test_features_of_a_module_are_of_its_code(package, digits, tmp_path):
    """A module that a program passes: its weights are the same, and its code is in another file."""
    (package / "net.py").write_text(
        "from torch import nn\nfrom .helper import scaled\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return scaled(x.mean(dim=(2, 3, 4)))\n"
    )
    clips = vidssl.TestClips(clip={"frames": 2, "seconds": 0.3}, size=16, clips=1, crops=1, workers=0)

    def extracted():
        forget()
        net = nn.Sequential(importlib.import_module("of_users.net").Net())
        return vidssl.extract(net, digits / "motion/test.csv", out=tmp_path / "x", test=clips, progress=False).x

    first = extracted()
    assert torch.equal(extracted(), first)
    (package / "helper.py").write_text(HELPER.replace("1.0", "2.0"))
    with pytest.raises(VidsslError, match="code"):
        extracted()
