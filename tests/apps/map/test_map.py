"""The command map: features to a page, its columns, and each mistake to its one line."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import vidssl
from vidssl import cli
from vidssl.apps.map import layout_2d, read_columns
from vidssl.apps.map.layout_2d import is_installed
from vidssl.base.errors import DataError
from vidssl.data.video_list import read_list
from vidssl.evaluation import near_copies

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
UNTRAINED = ("--checkpoint", "random", "--cfg", str(TOY), "data.moving_digits=null", "--clips", "1", "--workers", "0")


@pytest.fixture(scope="module")
def features(digits, tmp_path_factory):
    """The features of the test list of the moving digits, by an untrained network."""
    out = tmp_path_factory.mktemp("map") / "features"
    cli.run("extract", [f"{digits}/motion/test.csv", *UNTRAINED, "--out", str(out), "--quiet"])
    return out


@pytest.fixture
def draw(capsys, tmp_path):
    """Run the command; give what it prints, or its error, and the points of its page."""

    def run(*words, out=tmp_path / "page"):
        capsys.readouterr()
        try:
            cli.guarded(lambda: cli.run("map", [*map(str, words), "--out", str(out)]))
        except SystemExit as end:
            message = capsys.readouterr().err
            assert end.code == 2
            return message[message.rindex("error: ") :].rstrip("\n"), None
        page = (out / "index.html").read_text(encoding="utf-8")
        match = re.search(r'<script type="application/json" id="points">(.*?)</script>', page, re.DOTALL)
        return capsys.readouterr().out.rstrip("\n"), json.loads(match[1])

    return run


def test_the_page_has_the_features_in_the_layout_of_pca(features, draw, digits, tmp_path):
    printed, points = draw("--features", features, "--layout", "pca")
    videos, x = read_list(digits / "motion/test.csv"), np.load(features / "features.npy")
    assert [row[:2] for row in points["rows"]] == [[*pair] for pair in zip(videos.names, videos.labels, strict=True)]
    assert {(start, end) for *_, start, end in points["rows"]} == {(None, None)}
    names = [points["columns"][0]["classes"][value] for value in points["columns"][0]["values"]]
    assert names == [videos.classes[label] for label in videos.labels]
    expected = PCA(2, svd_solver="full").fit_transform(x / np.linalg.norm(x, axis=1, keepdims=True))
    actual = np.stack([points["x"], -np.array(points["y"])], axis=1)
    for axis in (0, 1):  # up to sign, place and one common scale
        assert abs(np.corrcoef(actual[:, axis], expected[:, axis])[0, 1]) > 0.9999
    ratio = np.ptp(actual, axis=0) / np.ptp(expected, axis=0)
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-3) and np.ptp(actual, axis=0).max() == pytest.approx(1, abs=1e-4)
    assert len(points["clips"]) == len(x)
    first, second, *_ = printed.splitlines()
    assert first == "labels: the list's, 8 classes"
    assert second.startswith(f"{len(x)} videos x {x.shape[1]} features, layout PCA, ")
    results = json.loads((tmp_path / "page/results.json").read_text())
    assert results["layout"] == "pca" and results["num_videos"] == len(x) == results["thumbnails"]
    assert 0 < results["neighbours_kept"] <= 1 and f"{100 * results['neighbours_kept']:.0f}% of the 10" in printed


def test_a_list_beside_the_page_is_an_input(features, draw, digits, tmp_path):
    _, points = draw("--features", features, "--layout", "pca", "--thumbnails", "0")
    assert points["clips"] == {}
    with (tmp_path / "page/selection.csv").open("w", newline="") as file:  # as the page writes it
        csv.writer(file).writerows([["path", "label"], *(row[:2] for row in points["rows"][3:6])])
    own, whole = read_list(tmp_path / "page/selection.csv"), read_list(digits / "motion/test.csv")
    assert [*own.records] == [*whole.records][3:6] and own.classes == whole.classes
    assert [*read_list(tmp_path / "page/videos.csv").records] == [*whole.records]


def test_without_features_they_are_extracted(features, draw, digits, tmp_path):
    _, points = draw(digits / "motion/test.csv", *UNTRAINED, "--layout", "pca", "--thumbnails", "3")
    _, other = draw("--features", features, "--layout", "pca", "--thumbnails", "3", out=tmp_path / "other")
    assert points == other and {*points["clips"]} == {"0", "5", "10"}
    assert (tmp_path / "page/features/features.npy").read_bytes() == (features / "features.npy").read_bytes()
    _, again = draw(digits / "motion/test.csv", *UNTRAINED, "--layout", "pca", "--thumbnails", "3")
    assert again == points


def test_a_name_that_no_list_can_hold_is_refused_before_the_extraction(digits, tmp_path, monkeypatch):
    monkeypatch.setattr("vidssl.apps.map.extract", None)
    (tmp_path / "two\nlines").mkdir()
    shutil.copy(next((digits / "videos/test").glob("*.mp4")), tmp_path / "two\nlines/a.mp4")
    with pytest.raises(DataError, match="holds a line break or is not UTF-8: rename it"):
        vidssl.map(tmp_path, model="vidssl-small", out=tmp_path / "page")


@pytest.mark.skipif(not is_installed("umap"), reason="needs umap-learn")
def test_umap_is_the_default_where_it_is_installed(features, draw, tmp_path, monkeypatch):
    """With the seed of the command; the layout itself, which numba compiles first: test_layout_2d.py."""
    asked, layout = [], layout_2d.layout
    monkeypatch.setattr(layout_2d, "layout", lambda x, *how: asked.append(how) or layout(x, "pca"))
    printed, _ = draw("--features", features, "--thumbnails", "0")
    assert "layout UMAP, " in printed
    draw("--features", features, "--thumbnails", "0", "--seed", "1", out=tmp_path / "b")
    assert asked == [("umap", 0), ("umap", 1)]


def test_columns_are_joined_by_path(features, draw, tmp_path):
    names = [row["path"] for row in csv.DictReader((features / "rows.csv").open())]
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        rows = [[n / 4, name, 'odd, "x"' if n % 2 else "even"] for n, name in enumerate(names)][1:]
        csv.writer(file).writerows([["speed", "path", "kind"], *reversed(rows), [9, "other.mp4", "odd"]])
    printed, points = draw("--features", features, "--layout", "pca", "--thumbnails", "0", "--columns", table)
    _, speed, kind = points["columns"]
    assert speed == {"name": "speed", "classes": [], "values": [None, *(n / 4 for n in range(1, len(names)))]}
    assert kind["classes"] == ["even", 'odd, "x"'] and kind["values"] == [None, *(n % 2 for n in range(1, len(names)))]
    assert f"{len(names) - 1} of them have values of speed, kind" in printed


def test_columns_find_videos_as_labels_do(digits, tmp_path):
    """By the name of the file, in a file of another country's Excel, below any title."""
    videos = read_list(digits / "motion/test.csv")
    stems = [Path(name).stem for name in videos.names]
    lines = ["Datei;Länge;Ort", *(f"{stem.upper()}.MP4;{n};Köln" for n, stem in enumerate(stems[:3]))]
    (tmp_path / "table.csv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    (length, place), matched = read_columns(tmp_path / "table.csv", videos)
    assert (length.name, place.name, place.classes, matched) == ("Länge", "Ort", ("Köln",), 3)
    assert length.values[:4] == [0, 1, 2, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path\na\n", r"header 'path' needs a column to show"),
        ("path,x,x\na,1,1\n", r"each name once"),
        ("path,x\na\n", r"table.csv:2: 1 fields, the header has 2"),
        ("path,x\n00000,1\n00000,2\n", r"table.csv:3: 00000 has the label '00000,2', in .*table.csv:2 '00000,1'"),
        ("path,x\na,1\n", r"table.csv has no label of a video of .*mp4.*; it names a"),
        ("path,start,end,x\na,zero,,1\n", r"table.csv:2: 'zero' is not a number: start and end are seconds"),
        (None, r"cannot read list .*table.csv"),
    ],
)
def test_wrong_columns_are_one_line(digits, tmp_path, text, message):
    if text is not None:
        (tmp_path / "table.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_columns(tmp_path / "table.csv", read_list(digits / "motion/test.csv"))
    assert "\n" not in str(caught.value)


def test_spans_of_a_video_have_their_own_values(digits, draw, tmp_path):
    names = read_list(digits / "motion/test.csv").names[:2]
    rows = [[names[0], 0, 0.3], [names[0], 0.3, 0.6], [names[1], "", ""]]
    for name, more in ("list", []), ("table", ["value"]):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            values = [[value] if more else [] for value in ("first", "second", "whole")]
            csv.writer(file).writerows([["path", "start", "end", *more], *map(list.__add__, rows, values)])
    arguments = [tmp_path / "list.csv", *UNTRAINED, "--root", digits, "--layout", "pca"]
    printed, points = draw(*arguments, "--columns", tmp_path / "table.csv")
    assert [row[2:] for row in points["rows"]] == [[0, 0.3], [0.3, 0.6], [None, None]]
    file, start, values = points["columns"]  # without labels there are no classes, nor folders in one folder
    assert [file["classes"][n] for n in file["values"]] == [names[0], names[0], names[1]]
    assert start["name"] == "start in seconds" and start["values"] == [0, 0.3, 0]
    results = json.loads((tmp_path / "page/results.json").read_text())
    assert (results["num_videos"], results["num_windows"]) == (2, 3) and "\n2 videos, 3 windows x " in printed
    assert [values["classes"][n] for n in values["values"]] == ["first", "second", "whole"]
    assert read_list(tmp_path / "page/videos.csv").records[1].end == 0.6


def test_without_labels_folders_are_colours_and_suspects_have_their_names(digits, draw, tmp_path):
    names = read_list(digits / "motion/test.csv").names
    for n, name in enumerate(names):
        target = tmp_path / "videos/all" / ("left" if n % 2 else "right") / "deep" / f"{n:02d}.mp4"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((digits / name).read_bytes())
    copy = tmp_path / "videos/all/right/deep/copy.mp4"
    copy.write_bytes((digits / names[1]).read_bytes())
    printed, points = draw(tmp_path / "videos", *UNTRAINED, "--layout", "pca")
    (column,) = points["columns"]
    assert column["name"] == "folder" and column["classes"] == ["left", "right"]
    folders = [row[0].split("/")[1] for row in points["rows"]]
    assert [column["classes"][value] for value in column["values"]] == folders
    rows = [row[0] for row in points["rows"]]
    results = json.loads((tmp_path / "page/results.json").read_text())
    pair = {"all/left/deep/01.mp4", "all/right/deep/copy.mp4"}
    (copy,) = [copy for copy in results["suspects"]["near_copies"] if copy["equal_files"]]
    assert {video["path"] for video in copy["videos"]} == pair
    assert {rows[points["near"][rows.index(one)][0]] for one in pair} == pair
    assert str(tmp_path / "videos") in (tmp_path / "page/index.html").read_text()
    assert "look at: " in printed


def test_near_copies_are_a_table_and_searched_once(digits, draw, tmp_path, monkeypatch):
    """Of the features, whatever the folder of the map; again where the pairs cannot be kept."""
    names = read_list(digits / "motion/test.csv").names[:4]
    for n, name in enumerate([*names, names[1]]):
        (tmp_path / f"videos/{n}.mp4").parent.mkdir(exist_ok=True)
        (tmp_path / f"videos/{n}.mp4").write_bytes((digits / name).read_bytes())
    decoded, decode = [], near_copies.of_records
    monkeypatch.setattr(near_copies, "of_records", lambda *words: decoded.append(1) or decode(*words))
    printed, _ = draw(tmp_path / "videos", *UNTRAINED, "--layout", "pca")
    assert "near copies: listed with the sizes of the files in near_copies.csv" in printed
    assert "near_copies.csv" in (tmp_path / "page/index.html").read_text()
    (row,) = csv.DictReader((tmp_path / "page/near_copies.csv").open())
    with vidssl.open_video(tmp_path / "videos/1.mp4") as video:
        meta = video.meta
    for n, name in ("1", "1.mp4"), ("2", "4.mp4"):
        size = (tmp_path / "videos" / name).stat().st_size
        assert (row[f"path_{n}"], row[f"start_{n}"], row[f"bytes_{n}"]) == (name, "", str(size))
        assert (row[f"width_{n}"], row[f"height_{n}"]) == (str(meta.width), str(meta.height))
        assert float(row[f"seconds_{n}"]) == pytest.approx(meta.duration, abs=0.01)
    assert (row["similarity"], row["equal_files"]) == ("1.0", "yes")
    features = tmp_path / "page/features"
    draw("--features", features, "--layout", "pca", out=tmp_path / "again")
    assert len(decoded) == 1 and (tmp_path / "again/near_copies.csv").exists()
    (tmp_path / "videos/4.mp4").unlink()  # a video less: features are taken from there, beside the file of copies
    printed, _ = draw(tmp_path / "videos", *UNTRAINED, "--layout", "pca")
    assert "near copies: none" in printed and not (tmp_path / "page/near_copies.csv").exists() and len(decoded) == 2
    (features / "near_copies.json").unlink()
    (features / "near_copies.json").mkdir()  # it cannot be written, nor read
    assert draw("--features", features, "--layout", "pca", out=tmp_path / "again")[1] and len(decoded) == 3


def test_near_copies_are_written_for_the_excel_of_the_labels(digits, draw, tmp_path):
    name = read_list(digits / "motion/test.csv").names[0]
    for n in range(2):
        (tmp_path / f"videos/ö{n}.mp4").parent.mkdir(exist_ok=True)
        (tmp_path / f"videos/ö{n}.mp4").write_bytes((digits / name).read_bytes())
    (tmp_path / "labels.csv").write_text("path;label\nö0.mp4;a\nö1.mp4;b\n", encoding="utf-8-sig")
    draw(tmp_path / "videos", *UNTRAINED, "--layout", "pca", "--labels", tmp_path / "labels.csv")
    content = (tmp_path / "page/near_copies.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfpath_1;") and ";1,0;yes" in content.decode()


def test_a_map_of_one_video(digits, draw, tmp_path):
    (tmp_path / "one.csv").write_text(f"path\n{read_list(digits / 'motion/test.csv').names[0]}\n")
    printed, points = draw(tmp_path / "one.csv", *UNTRAINED, "--root", digits)
    first, second, *_ = printed.splitlines()
    assert first == "labels: none; --labels FILE gives names of classes"
    assert second.startswith("1 video x ") and "layout PCA (as " in second
    assert points["x"] == points["y"] == [0.0] and points["columns"] == []
    assert json.loads((tmp_path / "page/results.json").read_text())["neighbours_kept"] is None


def test_videos_that_cannot_be_decoded_stay_points_and_are_counted(features, draw, tmp_path, caplog):
    names = [row["path"] for row in csv.DictReader((features / "rows.csv").open())]
    root = tmp_path / "moved"
    for name in names[1:3]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"no video")
    printed, points = draw("--features", features, "--layout", "pca", "--root", root)
    assert points["clips"] == {} and len(points["rows"]) == len(names)
    results = json.loads((tmp_path / "page/results.json").read_text())
    assert [gap["path"] for gap in results["not_decoded"]] == names
    assert results["suspects"]["not_searched"] == f"{len(names)} videos could not be decoded"
    assert (
        f"near_copies.csv; {len(names)} videos could not be decoded" in printed
        and "could not be decoded" in (tmp_path / "page/index.html").read_text()
    )
    assert f"no thumbnails of {len(names)} videos, the first: " in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a map needs --features FOLDER (of vidssl extract), or videos and a network"),
        (["list.csv"], "a map needs --features FOLDER (of vidssl extract), or videos and a network"),
        (
            ["--features", "FEATURES", "--clips", "2"],
            "--features FOLDER has features already: leave out videos, the network and its options",
        ),
        (
            ["list.csv", "--features", "FEATURES"],
            "--features FOLDER has features already: leave out videos, the network and its options",
        ),
        (["--features", "missing"], "cannot read missing: No such file or directory; vidssl extract writes"),
        (["--features", str(TOY.parent)], "is not a folder of features of format 1: give a folder that vidssl extract"),
    ],
)
def test_wrong_arguments_are_one_line(features, draw, words, message):
    printed, _ = draw(*(features if word == "FEATURES" else word for word in words))
    assert message in printed and "\n" not in printed


def test_the_folder_of_other_lists_is_not_changed(features, draw, digits, tmp_path):
    printed, _ = draw("--features", features, "--root", tmp_path, out=digits / "motion")
    assert "belongs to other lists: choose another folder" in printed and not (digits / "motion/index.html").exists()
