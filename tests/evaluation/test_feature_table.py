"""Features as a table: what other programs read of it are the arrays of the folder, and its paths are the user's."""

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import vidssl
from vidssl import cli
from vidssl.base.errors import ConfigError, DataError
from vidssl.evaluation import feature_table

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
NETWORK = {"cfg": TOY, "settings": ["data.moving_digits=null"], "clips": 1, "workers": 0, "progress": False}
NAMES = ("a, b/ü 1.mp4", 'a, b/"2".mp4', "c/3.mp4", "c/4.mp4")


@pytest.fixture
def videos(digits, tmp_path):
    """A folder of four videos with odd names; labels of three of them beside it, as a person keeps them."""
    for n, name in enumerate(NAMES):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(digits / f"videos/train/{n:05d}.mp4", tmp_path / "in" / name)
    labels = pandas.DataFrame({"path": NAMES[:3], "behaviour": ["x", "y", "x"]})
    labels.to_csv(tmp_path / "labels.csv", index=False)
    return tmp_path / "in"


def read(path):
    return pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path)


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_a_table_has_the_features_of_the_folder_bit_by_bit(to, videos, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_table, "_BLOCK_ROWS", 3)
    made = vidssl.extract("random", videos, out=tmp_path / "x", to=to, **NETWORK)
    table, x = read(tmp_path / f"x/features.{to}"), np.load(tmp_path / "x/features.npy")
    assert [*table] == ["path", "class", "start", "end", *(f"x{n}" for n in range(x.shape[1]))]
    assert np.array_equal(table.filter(regex="^x").to_numpy(np.float32), x)
    assert repr(made) == f"<Features: 4 videos x {x.shape[1]} features in {tmp_path}/x>"
    assert repr(made.names) == f"{sorted(NAMES)[:3]}"[:-1] + ", … (4 in all)]" and made.names[:9] == tuple(
        sorted(NAMES)
    )
    with open(tmp_path / "x/rows.csv", newline="") as file:
        assert [*table["path"]] == [row["path"] for row in csv.DictReader(file)] == sorted(NAMES)
    assert table[["class", "start", "end"]].isna().all(axis=None)
    labels = pandas.read_csv(tmp_path / "labels.csv")
    for of_python in (made, vidssl.extract("random", videos, **NETWORK)):
        assert [*of_python.to_pandas()["path"]] == [*table["path"]]
        assert len(labels.merge(of_python.to_pandas(), on="path")) == len(labels.merge(table, on="path")) == 3


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_a_table_of_a_list_and_its_windows(to, videos, tmp_path):
    rows = "".join(f'"{name.replace(chr(34), chr(34) * 2)}",{n - 1}\n' for n, name in enumerate(NAMES))
    (tmp_path / "list.csv").write_text(f"path,label\n{rows}")
    (tmp_path / "root.txt").write_text(f"{videos}\n")
    (tmp_path / "classes.txt").write_text("run\nsit\nstand\n")
    made = vidssl.extract("random", tmp_path / "list.csv", out=tmp_path / "x", window=0.4, to=to, **NETWORK)
    table = read(tmp_path / f"x/features.{to}")
    assert [*table["path"].unique()] == [*NAMES] and len(table) == len(made) > 4
    assert [*table["class"].where(table["class"].notna(), None)] == [*made.to_pandas()["class"]]
    of_names = table.dropna(subset="class").drop_duplicates("path").set_index("path")["class"].to_dict()
    assert of_names == dict(zip(NAMES[1:], ("run", "sit", "stand"), strict=True))
    assert [*table["start"]] == [record.start for record in made.records]
    assert [*table["end"]] == [record.end for record in made.records]


def test_a_table_belongs_to_its_features(videos, tmp_path, capsys):
    words = [*map(str, (videos, "--checkpoint", "random", "--cfg", TOY, "--clips", 1, "--workers", 0))]
    words += ["--out", str(tmp_path / "x"), "data.moving_digits=null"]
    (videos / "empty.mp4").touch()
    (videos / "damaged.mp4").write_text("<html>")
    cli.run("extract", [*words, "--to", "csv"])
    first = (tmp_path / "x/features.csv").read_bytes()
    cli.run("extract", words)  # files that cannot be read are no new ones
    assert (tmp_path / "x/features.csv").read_bytes() == first
    (tmp_path / "x/features.csv").unlink()
    cli.run("extract", [*words, "--to", "csv"])  # of the features that are there
    assert (tmp_path / "x/features.csv").read_bytes() == first
    (videos / NAMES[3]).unlink()
    cli.run("extract", words)
    assert not (tmp_path / "x/features.csv").exists()  # it had a row more
    cli.run("extract", [*words, "--to", "csv"])
    assert len(read(tmp_path / "x/features.csv")) == 3
    (tmp_path / "x/meta.json").unlink()  # as of a run that was killed
    cli.run("extract", words)
    assert len(vidssl.load_features(tmp_path / "x")) == 3


@pytest.mark.parametrize("name", ["features.csv", "features.parquet"])
@pytest.mark.parametrize("kind", ["new", "changed", "link"])
def test_a_table_of_the_user_stays(name, kind, videos, tmp_path, caplog):
    table, to = tmp_path / "x" / name, name.partition(".")[2]
    vidssl.extract("random", videos, out=tmp_path / "x", to=to if kind == "changed" else None, **NETWORK)
    if kind == "link":
        (tmp_path / "mine").write_bytes(b"mine")
        table.symlink_to(tmp_path / "mine")
    else:
        table.write_bytes(b"mine")
    (videos / NAMES[3]).unlink()
    assert len(vidssl.extract("random", videos, out=tmp_path / "x", **NETWORK)) == 3
    assert table.read_bytes() == b"mine" and table.is_symlink() == (kind == "link")
    assert f"{table} stays as it is, though the features are new: vidssl did not write it so" in caplog.messages
    with pytest.raises(DataError, match="is a link" if kind == "link" else "is there already"):
        vidssl.extract("random", videos, out=tmp_path / "x", to=to, **NETWORK)
    assert table.read_bytes() == b"mine"


def test_a_table_that_cannot_be_written(videos, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="give out=FOLDER"):
        vidssl.extract("random", videos, to="csv", **NETWORK)
    with pytest.raises(ConfigError, match="to is 'xlsx': choose one of csv, parquet"):
        vidssl.extract("random", videos, out=tmp_path / "x", to="xlsx", **NETWORK)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs pyarrow: pip install 'vidssl\[parquet\]'"):
        vidssl.extract("random", videos, out=tmp_path / "x", to="parquet", **NETWORK)
    assert not (tmp_path / "x").exists()
