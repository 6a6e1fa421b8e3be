"""Protocols in a module of a user's: what is wrong is said in one line, and edited code is measured again."""

import json
import sys

import pytest

import vidssl
from vidssl.base.errors import ConfigError
from vidssl.evaluation.protocols import PROTOCOLS

SOURCE = """
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured


@PROTOCOLS.register("of_a_user")
class OfAUser(EvaluationProtocol):
    def __call__(self, gallery, query, exclude):
        return RETURNED
"""


@pytest.fixture
def measure(digits, tmp_path, monkeypatch):
    """Test an untrained network with the protocol, whose code returns an expression."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # that of a file of the same second and size is taken for it

    def measure(returned, protocol="of_a_user"):
        PROTOCOLS._entries.pop("of_a_user", None)
        sys.modules.pop("own_protocol", None)
        (tmp_path / "own_protocol.py").write_text(SOURCE.replace("RETURNED", returned))
        lists = digits / "motion"
        return vidssl.test(
            "random",
            lists / "test.csv",
            train_list=lists / "train.csv",
            cfg="toy/sce",
            protocol=[protocol],
            imports=["own_protocol"],
            out=tmp_path / "out",
            clips=1,
            crops=1,
            workers=0,
            device="cpu",
        )

    yield measure
    PROTOCOLS._entries.pop("of_a_user", None)
    sys.modules.pop("own_protocol", None)


def test_edited_code_is_measured_again(measure, tmp_path):
    assert measure('Measured({"number": 0.25})')["number"] == 0.25
    first = (tmp_path / "out/results.json").read_text()
    assert measure('Measured({"number": 0.25})')["number"] == 0.25
    assert (tmp_path / "out/results.json").read_text() == first, "the same code is not run again"
    assert measure('Measured({"number": 0.75})')["number"] == 0.75
    (described,) = json.loads((tmp_path / "out/results.json").read_text())["protocols"]
    assert described["name"] == "of_a_user" and len(described["code"]) == 64


def test_a_module_that_is_not_there():
    remedy = r"cannot import 'no_such': .*; name the module, and have its folder on PYTHONPATH"
    with pytest.raises(ConfigError, match=remedy):
        vidssl.load_backbone("vidssl-small", imports=["no_such"])
