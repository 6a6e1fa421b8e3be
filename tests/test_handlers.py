"""Errors of our own code are never taken for damaged data: handlers name the exceptions that they mean."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl.apps.check import check
from vidssl.apps.shrink import shrink
from vidssl.base.errors import CheckpointError
from vidssl.base.types import Tracks
from vidssl.data import track_files
from vidssl.models import build_backbone, checkpoint_files, load_backbone
from vidssl.models import match_checkpoints as initial_weights
from vidssl.models import read_and_write_weights as weights
from vidssl.tracking import proposals
from vidssl.video import decode
from vidssl.video import packet_index as index
from vidssl.video.reader import open_video

PACKAGE = Path(__file__).parents[1] / "vidssl"
BROAD = {"Exception", "BaseException"}
# Handlers of everything that do not raise it again, and why. Each guards a call into another package, or the end of a
# process; none guards code of vidssl whose errors it would hide.
ALLOWED = {
    "apps/compare/features_and_predictions.py _gigaflops": "torch counts those of any module",
    "evaluation/features.py __call__": "the crop of an encoder of others",
    "models/backbones.py forward": "any module",
    "models/checkpoint_files.py _load": "torch.load raises errors of a dozen types, and with trust runs code of anyone",
    "models/checkpoint_files.py read_without_objects": "torch.load, likewise",
    "models/external/__init__.py load_library_encoder": "other libraries, which download and read files of any kind",
    "apps/export/__init__.py _explained": "torch's exporters; the network has run before, and the error is the cause",
    "models/read_and_write_weights.py _download": "the libraries of huggingface_hub",
    "apps/prepare/torchvision_sets_and_digits.py _open_splits": "the sets of torchvision",
    "apps/prepare/torchvision_sets_and_digits.py _items": "the sets of torchvision",
    "base/safe_parse.py map_array": "numpy's reader",
    "base/safe_parse.py read_arrays": "numpy's reader, zipfile, zlib",
    "base/registry.py _load": "kept, and raised at every look-up",
    "video/other_decoders.py _finds_ffmpeg": "torchcodec",
    "video/other_decoders.py _guarded": "the decoders of other packages",
    "base/worker_pool.py _work": "a worker sends its traceback to the parent, which raises it",
}


def names_of(node):
    """Names of the exceptions of a handler, or of the arguments of `suppress`."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "?") for part in parts}


def may_be(raised, name):
    """Whether what is raised is the error itself, perhaps under a condition, not another that is made of it."""
    parts = (raised.body, raised.orelse) if isinstance(raised, ast.IfExp) else (raised,)
    return any(isinstance(part, ast.Name) and part.id == name for part in parts)


def broad_handlers(source):
    """(function, line) of each handler of all exceptions that does not raise it again."""
    collected = []

    def visit(node, function):
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.ExceptHandler) and (node.type is None or names_of(node.type) & BROAD):
            last = node.body[-1]
            if not isinstance(last, ast.Raise) or (last.exc is not None and not may_be(last.exc, node.name)):
                collected.append((function, node.lineno))
        suppresses = isinstance(node, ast.Call) and names_of(node.func) == {"suppress"}
        if suppresses and any(names_of(argument) & BROAD for argument in node.args):
            collected.append((function, node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "")
    return collected


def test_handlers_name_what_they_catch():
    actual = {
        f"{path.relative_to(PACKAGE).as_posix()} {function}"
        for path in PACKAGE.rglob("*.py")
        for function, _ in broad_handlers(path.read_text(encoding="utf-8"))
    }
    assert actual - {*ALLOWED} == set()


@pytest.mark.parametrize(
    ("body", "broad"),
    [
        ("except Exception:\n        pass", True),
        ("except:\n        return None", True),
        ("except BaseException as error:\n        raise DataError(str(error))", True),
        ("except (ValueError, Exception):\n        x = 1", True),
        ("except Exception:\n        close()\n        raise", False),
        ("except BaseException as error:\n        close()\n        raise error from None", False),
        ("except (OSError, ValueError):\n        pass", False),
    ],
)
def test_what_is_a_broad_handler(body, broad):
    source = f"def f():\n    try:\n        g()\n    {body}\n"
    assert broad_handlers(source) == ([("f", 4)] if broad else [])
    assert broad_handlers("def f():\n    with suppress(Exception):\n        g()") == [("f", 2)]


# A mistake in our own code escapes ---------------------------------------------------------------------------


class Mistake(TypeError):
    """An error that no file causes."""


def mistaken(*_, **__):
    raise Mistake("of our own code")


@pytest.fixture
def video(tmp_path, digits):
    path = tmp_path / "v" / "a.mp4"
    path.parent.mkdir()
    path.write_bytes(next(digits.rglob("*.mp4")).read_bytes())
    return path


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "a.pt"
    torch.save(build_backbone("resnet3d18", width=4).state_dict(), path)
    return path


def opened(video, network, patch):
    patch.setattr(decode._ToRGB, "__call__", mistaken)
    with open_video(video) as opened_video:
        opened_video.frames([0])


def checked(video, network, patch):
    patch.setattr(decode._ToRGB, "__call__", mistaken)
    check(video, out=video.parents[1] / "out", workers=1)


def shrunk(video, network, patch):
    patch.setattr(decode._ToRGB, "__call__", mistaken)
    shrink(video.parent, out=video.parents[1] / "out", short_side=16)


def cached(video, network, patch):
    open_video(video, cache=video.parent / "cache").close()
    index._cache.clear()
    patch.setattr(index, "VideoMeta", mistaken)
    open_video(video, cache=video.parent / "cache").close()


def loaded(video, network, patch):
    patch.setattr(initial_weights, "flatten", mistaken)
    load_backbone(network)


def loaded_safetensors(video, network, patch):
    patch.setattr(checkpoint_files, "_parse_safetensors", mistaken)
    load_backbone("vidssl-small")


def tracked(video, network, patch):
    path = video.parent / "t.npz"
    boxes = np.array([[0, 0, 2, 2]], np.float32)
    track_files.write_tracks(path, Tracks(np.array([0]), boxes, np.array([1.0], np.float32), np.array([0])), {})
    patch.setattr(track_files, "Tracks", mistaken)
    track_files.read_tracks(path)


def proposed(video, network, patch):
    path = video.parent / "p.npz"
    proposals.write_proposals(path, "key", np.array([0]), [np.zeros((1, 4), np.float32)])
    patch.setattr(proposals, "read_arrays", mistaken)
    proposals.read_proposals(path, "key", np.array([0]))


@pytest.mark.parametrize("where", [opened, checked, shrunk, cached, loaded, loaded_safetensors, tracked, proposed])
def test_a_mistake_in_our_own_code_escapes(where, video, network, monkeypatch):
    # A worker process sends its traceback instead.
    with pytest.raises((Mistake, RuntimeError), match="of our own code"):
        where(video, network, monkeypatch)


def test_a_module_that_refuses_its_state_is_an_error_of_the_checkpoint_but_a_mistake_is_not():
    class Refuses(torch.nn.Module):
        error = ValueError

        def get_extra_state(self):
            return 1

        def set_extra_state(self, state):
            raise self.error("of the state")

    with pytest.raises(CheckpointError, match="of the state"):
        weights.load_state(Refuses(), {"_extra_state": 1}, "x.pt")
    Refuses.error = Mistake
    with pytest.raises(Mistake):
        weights.load_state(Refuses(), {"_extra_state": 1}, "x.pt")
