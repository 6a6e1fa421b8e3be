"""Queries one after another: spans and examples, pages of one folder, hits without a folder, an index and its root."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from vidssl import cli
from vidssl.apps.search import retrieval
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.dataset import ClipDataset
from vidssl.jobs.extract import extract

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"


@pytest.fixture
def folder(lists):
    """The folder `train`, without its list."""
    return lists[0].parent / "train"


@pytest.fixture
def search(options, folder, tmp_path):
    """Search the folder by an index."""
    extract(videos=folder, out=tmp_path / "g", **options)

    def run(*query, **more):
        query = query[0] if len(query) == 1 else [*query]
        return retrieval(**{"query": query, "index": tmp_path / "g", **options, **more})

    return run


def features(videos, options):
    """The features of videos as unit vectors, and their names."""
    made = extract(videos=videos, **options)
    x = made.x.numpy().astype(float)
    return x / np.linalg.norm(x, axis=1, keepdims=True), [*made.names]


def test_a_damaged_index_is_an_error(search, folder, tmp_path, one_line):
    """Its neighbours would be wrong."""
    array = tmp_path / "g/features.npy"
    array.write_bytes(array.read_bytes()[:-40] + bytes(40))
    message = one_line(DataError, search, folder / "1.mp4")
    assert "features.npy was changed" in message and message.endswith("extract it with gallery=LIST")


# Hits without a folder --------------------------------------------------------------------------------------


def test_hits_are_printed_and_nothing_is_written(search, lists, folder, tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    before = sorted(tmp_path.rglob("*"))
    hits = search(lists[1].parent / "test/5.mp4", k=3)
    head, titles, *lines = str(hits).splitlines()
    assert hits.file is None and titles.split() == ["similarity", "class", "path"] and head.endswith("24²")
    assert [line.split() for line in lines] == [
        [str(hit["rank"]), f"{hit['similarity']:.4f}", "?", hit["path"]] for hit in hits["neighbours"]
    ]
    one = [hit["path"] for hit in hits["neighbours"]]
    assert sorted(tmp_path.rglob("*")) == before and len(lines) == 3
    hits = search(lists[1].parent / "test", k=3)  # each video is a query of its own
    assert [of["query"] for of in hits["hits"]] == [f"{n}.mp4" for n in range(7)] and "neighbours" not in hits
    assert [hit["path"] for hit in hits["hits"][5]["neighbours"]] == one
    lines = str(hits).splitlines()
    assert lines.count("") == 7 and lines[lines.index("5.mp4") + 2].endswith(one[0])
    head, note, *lines = str(search(folder, k=3)).splitlines()
    assert note == "the first 10 of 12 queries; out=FOLDER has all:" and lines.count("") == 10
    assert "percent" in str(search(lists[1], index=None, gallery=lists[0]))  # of lists with labels, the accuracies
    assert sorted(tmp_path.rglob("*")) == before


def test_a_list_of_one_row_is_one_video(search, lists, tmp_path):
    alone = search(lists[1].parent / "test/5.mp4", out=tmp_path / "a")
    (lists[1].parent / "one.csv").write_text("path,label\ntest/5.mp4,1\n")
    listed = search(lists[1].parent / "one.csv", out=tmp_path / "b")
    assert listed["neighbours"] == alone["neighbours"] and str(listed).splitlines()[1:] == str(alone).splitlines()[1:]


# Spans and examples -----------------------------------------------------------------------------------------


def test_a_span_of_a_file(options, search, lists, folder, tmp_path, one_line):
    file, whole = folder / "3.mp4", {hit["path"] for hit in search(folder / "3.mp4", k=50)["neighbours"]}
    spanned = search(f"{file}@0.2-0.6", k=50)
    assert {hit["path"] for hit in spanned["neighbours"]} == whole and "3.mp4" not in whole  # it is a part of its file
    (tmp_path / "q.csv").write_text("path,start,end\n3.mp4,0.2,0.6\n")
    (tmp_path / "root.txt").write_text(f"{folder}\n")
    assert spanned["neighbours"] == search(tmp_path / "q.csv", k=50)["neighbours"]
    assert str(spanned).startswith(f"{file}@0.2-0.6: ")
    windows = {"index": None, "gallery": folder, "window": 0.3, "k": 500}
    moments = search(f"{file}@0.2-0.6", **windows)["neighbours"]
    own = [(hit["start"], hit["end"]) for hit in moments if hit["path"] == "3.mp4"]
    assert own and all(end <= 0.2 or start >= 0.6 for start, end in own)
    shutil.copy(folder / "5.mp4", f"{file}@0.2-0.6")
    named = search(f"{file}@0.2-0.6", k=50)["neighbours"]  # a file of that name wins
    similarity = {hit["path"]: hit["similarity"] for hit in named}
    assert similarity["5.mp4"] == pytest.approx(1, abs=1e-5) and named[0]["duplicate"]
    for word, message in (
        (f"{folder}/4.mp4@3-2", "end 2.0 is not after start 3.0: a span is FILE@START-END, in seconds"),
        (f"{folder}/4.mp4@1.2.3-4", "a span is FILE@START-END"),
        (f"{folder}/4.mp4@50-60", "50"),
        (f"{folder}@1-2", "a span is of one file, and"),
        (f"{folder}/none.mp4@1-2", "none.mp4 does not exist"),
    ):
        assert message in one_line(DataError, search, word)


def test_several_files_are_examples_of_one_query(options, search, lists, folder, tmp_path, one_line, search_page):
    (x, names), (examples, _) = features(folder, options), features([folder / "2.mp4", folder / "9.mp4"], options)
    similarity = x @ examples.mean(axis=0) / np.linalg.norm(examples.mean(axis=0))
    expected = [names[n] for n in np.argsort(-similarity) if names[n] not in ("2.mp4", "9.mp4")][:5]
    hits = search(folder / "2.mp4", folder / "9.mp4", k=5, out=tmp_path / "out")
    assert [hit["path"] for hit in hits["neighbours"]] == expected
    assert [hit["similarity"] for hit in hits["neighbours"]] == pytest.approx(
        [similarity[names.index(name)] for name in expected], abs=1e-5
    )
    page = (tmp_path / "out/index.html").read_text()
    assert str(hits).startswith(f"2 examples ({folder}/2.mp4, {folder}/9.mp4): ") and "Nearest videos of 2 ex" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    ((first, _, *others),) = data["queries"]
    assert [data["files"][data["videos"][n][0]][0] for n in (first, *others)] == ["2.mp4", "9.mp4"]
    # A copy of an example is called one, and may be left out; what cannot be read is no example.
    shutil.copy(folder / "9.mp4", folder.parent / "copy.mp4")
    (folder.parent / "broken.mp4").write_text("<html>")
    copied = search(folder / "2.mp4", folder.parent / "copy.mp4", folder.parent / "broken.mp4", k=12)
    assert {hit["path"] for hit in copied["neighbours"] if hit["duplicate"]} == {"9.mp4"}
    assert copied["duplicates"] == len(copied["missing_queries"]) == 1
    without = search(folder / "2.mp4", folder.parent / "copy.mp4", k=12, drop_duplicates=True)["neighbours"]
    assert {hit["path"] for hit in without} == {*names} - {"2.mp4", "9.mp4"}
    for error, more, message in (
        (ConfigError, {"gradcam": True}, "similarities to single videos"),
        (ConfigError, {"center": True}, "needs a list of queries"),
    ):
        assert message in one_line(error, search, folder / "2.mp4", folder / "9.mp4", **more)
    message = one_line(ConfigError, search, folder / "2.mp4", lists[1])
    assert message == f"{lists[1]} is a list, and several queries are examples of one thing: name it alone"


# The pages of a folder --------------------------------------------------------------------------------------


def test_each_query_has_its_page_in_one_folder(search, folder, tmp_path, monkeypatch):
    out, queries = tmp_path / "out", [(folder / f"{n}.mp4",) for n in range(2)] + [(f"{folder}/0.mp4@0-0.5",)]
    results, pages = [], []
    for query in queries:
        results.append(search(*query, out=out))
        pages.append((out / "index.html").read_text())
    assert json.loads((out / "results.json").read_text()) == results[2]
    names = [each["page"] for each in results]
    assert len({*names}) == 3 and names[0].startswith("0.mp4-") and names[2].startswith("0.mp4@0-0.5-")
    listed = re.findall(r'<li><a href="([^"]+)">([^<]+)</a>', pages[2])
    assert listed == [(f"{names[1]}.html", "1.mp4"), (f"{names[0]}.html", "0.mp4")]  # the newest first
    for n in range(2):
        kept = (out / f"{names[n]}.html").read_text()
        assert json.loads((out / f"{names[n]}.json").read_text()) == results[n] and 'href="index.html"' in kept
        parts = [
            re.sub("<nav class=.earlier.*?</nav>|<p class=.earlier.*?</p>|\n", "", p, flags=re.S)
            for p in (kept, pages[n])
        ]
        assert parts[0] == parts[1]
        previews = {*re.findall(r"previews/\w+\.jpg", kept)}
        assert len(previews) == 11 and all((out / name).exists() for name in previews)
    (out / "notes-20240101.html").write_bytes("Größe".encode("latin-1"))  # of the user
    (out / "über.html").write_bytes("Größe".encode("latin-1"))
    again = search(*queries[0], out=out, k=2)  # it replaces its own page, and is the last query now
    assert "notes" not in (out / "index.html").read_text()
    for name in ("notes-20240101.html", "über.html"):
        assert (out / name).read_bytes() == "Größe".encode("latin-1")
        (out / name).unlink()
    assert json.loads((out / "results.json").read_text()) == again and len(again["neighbours"]) == 2
    assert {path.name for path in out.iterdir()} == {
        *("index.html", "results.json", "previews", ".lock", ".vidssl.json"),
        *(f"{name}{suffix}" for name in names for suffix in (".html", ".json")),
    }
    used = {name for page in out.glob("*.html") for name in re.findall(r"previews/(\w+\.jpg)", page.read_text())}
    assert {path.name for path in (out / "previews").iterdir()} == used
    (out / "index.html").unlink()  # what was deleted is no obstacle
    monkeypatch.chdir(folder)  # a query is its file, however it is named
    assert search("0.mp4", out=out)["page"] == names[0]


@pytest.mark.parametrize("writer", ["write_json", "write_retrieval_page", "remove_other_previews", "write_results"])
@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_an_interruption_takes_no_page_of_another_query(writer, interrupted, search, folder, tmp_path, monkeypatch):
    """Whichever query is interrupted, at whichever write, and whether or not it follows itself."""
    out, heading = tmp_path / "out", {}

    def stop(*_, **__):
        raise KeyboardInterrupt

    for n in (0, 1, 2):
        page = search(folder / f"{n}.mp4", out=out, k=1)["page"]
        heading[page] = re.search("<h1>[^<]*", (out / f"{page}.html").read_text())[0]
    before = (out / "results.json").read_bytes()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"vidssl.apps.search.{writer}", stop)
        search(folder / f"{interrupted}.mp4", out=out, k=2)
    assert (out / "results.json").read_bytes() == before  # it is written last
    last = search(folder / "3.mp4", out=out, k=1)["page"]
    for page, text in heading.items():
        assert text in (out / f"{page}.html").read_text()
        assert json.loads((out / f"{page}.json").read_text())["page"] == page
    assert len({*heading.values()}) == 3
    listed = re.findall(r'<li><a href="([^"]+)\.html">', (out / "index.html").read_text())
    assert sorted(listed) == sorted(heading) and last not in listed


def test_a_folder_keeps_the_features_of_one_gallery_network_and_clips(
    options, search, folder, tmp_path, one_line, monkeypatch
):
    decoded, plan = [], ClipDataset.plan  # the frames of a video are planned, then decoded
    monkeypatch.setattr(ClipDataset, "plan", lambda self, key, meta: decoded.append(key) or plan(self, key, meta))
    out, query = tmp_path / "out", folder / "0.mp4"
    mine = {"out": out, "index": None, "gallery": folder}
    search(query, **mine)
    assert len(decoded) == 12 + 1  # the gallery and the query
    before = (out / "results.json").read_bytes()
    for more, message in (
        ({"settings": [*options["settings"], "seed=7"]}, "network random "),
        ({"clips": 2}, "clips 1 of 4 frames"),
        ({"window": 0.3}, "windows none, now 0.3 s every 0.3 s"),
        ({"index": tmp_path / "g"}, "index features, now ../g"),
        ({"gallery": folder.parent}, "gallery ../videos/train, now ../videos"),
    ):
        message_of = one_line(DataError, search, query, **{**mine, **more})
        assert message in message_of and message_of.endswith("choose another folder to write to")
    assert (out / "results.json").read_bytes() == before
    (folder / "0.mp4").rename(folder / "new.mp4")  # it is known by its content
    (folder / "1.mp4").unlink()
    for name, more in (("2.mp4", {"gallery": folder}), ("3.mp4", {})):  # also without the gallery
        decoded.clear()
        hits = search(folder / name, out=out, index=None, **more)
        assert len(decoded) == 1 and hits["num_gallery"] == 11
    assert "0.mp4" in (out / "index.html").read_text()


# The index --------------------------------------------------------------------------------------------------


def test_an_index_states_its_clips(options, folder, tmp_path):
    extract(videos=folder, out=tmp_path / "g", **options | {"clips": 3, "size": 20})
    others = {name: value for name, value in options.items() if name not in ("clips", "crops", "size")}
    for more in ({}, {"gallery": folder}):
        actual = retrieval(query=folder / "0.mp4", index=tmp_path / "g", **others, **more)
        assert [actual["protocol"][name] for name in ("clips", "crops", "size")] == [3, 1, 20]
    actual = retrieval(query=folder / "0.mp4", index=tmp_path / "g", **others, clips=2)  # an option wins
    assert actual["protocol"]["clips"] == 2
    with pytest.raises(DataError, match="clips 3 stored, 2 requested"):
        retrieval(query=folder / "0.mp4", index=tmp_path / "g", gallery=folder, **others, clips=2)


def write_labels(path, names):
    path.write_text("path,class\n" + "".join(f"{name},{label}\n" for name, label in names.items()))
    return path


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("by", ["index", "gallery", "both"])
def test_labels_of_some_videos_are_measured_alone(by, center, options, search, folder, tmp_path):
    """As if only the videos with labels were in the folder; the page has all."""
    names = {f"{n}.mp4": "ab"[n % 2] for n in (1, 2, 4, 5, 8, 9, 11)}
    labels, more = write_labels(tmp_path / "some.csv", names), {"center": center, "k": 3, "out": tmp_path / "out"}
    more |= {"index": None} if by == "gallery" else {}
    more |= {} if by == "index" else {"gallery": folder}
    partly = search(folder, labels=labels, **more)
    (folder.parent / "few").mkdir()
    for name in names:
        shutil.copy(folder / name, folder.parent / "few" / name)
    few = {"query": folder.parent / "few", "gallery": folder.parent / "few", "labels": labels, "center": center}
    alone = retrieval(**few, **options, k=3)
    for name in ("R@1", "R@5", "R@50", "knn", "chance", "majority", "uncentered" if center else "centered_features"):
        assert partly[name] == alone[name], name
    page = (tmp_path / "out/index.html").read_text()
    assert len(json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["queries"]) == 12
    one = search(
        folder / "0.mp4", labels=labels, k=20, **{key: more[key] for key in more.keys() & {"index", "gallery"}}
    )
    assert {hit["path"]: hit["class"] for hit in one["neighbours"] if hit["class"] != "?"} == names
    line = partly.text.splitlines()[0]
    assert "some.csv, 7 of 12 videos, 2 classes" in line and line == partly["labels"] and "percent" in partly.text


def test_other_classes_leave_the_accuracies_out(search, lists, folder, tmp_path):
    (tmp_path / "q").mkdir()
    (tmp_path / "q/q.csv").write_text("path,label\ntest/1.mp4,0\ntest/2.mp4,1\n")
    (tmp_path / "q/root.txt").write_text(f"{folder.parent}\n")
    (tmp_path / "q/classes.txt").write_text("x\ny\n")
    shutil.rmtree(tmp_path / "g")
    neighbours = search(tmp_path / "q/q.csv", gallery=lists[0], k=3)
    note = f"no accuracies: {tmp_path}/q/q.csv has other classes than {lists[0]}; labels=FILE gives labels to both"
    assert neighbours["note"] == note == neighbours.text.splitlines()[1] and "R@1" not in neighbours
    assert [len(hits["neighbours"]) for hits in neighbours["hits"]] == [3, 3]
    neighbours = search(tmp_path / "q/q.csv", out=tmp_path / "out", k=3)  # of the index the classes are known later
    assert neighbours["note"] == note.replace(str(lists[0]), str(tmp_path / "g")) == neighbours.text.splitlines()[1]
    page = (tmp_path / "out/index.html").read_text()
    assert "No accuracies: " in page and "labels=FILE" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert [data["videos"][row[0]][1] for row in data["queries"]] == [-1, -1]  # else it is another class by its number


def test_a_root_is_where_an_index_was_moved_to(search, lists, folder, tmp_path, one_line):
    """A list of queries has its own; so no query finds itself under another path."""
    (tmp_path / "q.csv").write_text("path\ntrain/1.mp4\ntrain/2.mp4\n")
    (tmp_path / "root.txt").write_text(f"{folder.parent}\n")
    message = one_line(DataError, search, tmp_path / "q.csv", root=folder.parent)
    assert f"{folder.parent} has none of the videos of {tmp_path}/g, such as 0.mp4: leave root=FOLDER out" in message
    for of, name in zip(search(tmp_path / "q.csv")["hits"], ("1.mp4", "2.mp4"), strict=True):
        assert name not in {hit["path"] for hit in of["neighbours"]}
    shutil.move(folder, tmp_path / "moved")
    (tmp_path / "root.txt").write_text(f"{tmp_path}\n")
    (tmp_path / "q.csv").write_text("path\nmoved/1.mp4\nmoved/2.mp4\n")
    for of, name in zip(search(tmp_path / "q.csv", root=tmp_path / "moved")["hits"], ("1.mp4", "2.mp4"), strict=True):
        assert name not in {hit["path"] for hit in of["neighbours"]}
    (tmp_path / "root.txt").unlink()  # then both have one
    (tmp_path / "q.csv").write_text("path\n1.mp4\n2.mp4\n")
    for of, name in zip(search(tmp_path / "q.csv", root=tmp_path / "moved")["hits"], ("1.mp4", "2.mp4"), strict=True):
        assert of["query"] == name and name not in {hit["path"] for hit in of["neighbours"]}


def test_files_are_counted(options, folder, tmp_path):
    for name in ("x.mp4", "y.mp4"):
        (folder / name).write_text("<html>")
    actual = retrieval(query=folder / "0.mp4", gallery=folder, window=0.3, out=tmp_path / "out", **options)
    count = actual["num_gallery"]
    assert count > 12 and f": {count} windows of 0.3 s in the gallery (12 files, 2 files could not be read), " in str(
        actual
    )
    page = (tmp_path / "out/index.html").read_text()
    assert f"<dd>{count} windows of 12 files</dd>" in page and "2 videos cannot be read" in page


def test_the_command(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    Path("7.mp4").rename("n=7.mp4")
    words = ["--checkpoint", "random", "--cfg", str(TOY), "--clips", "1", "--workers", "0", "--k", "2"]
    cli.run("retrieval", [*words, "--gallery", ".", "--query", "1.mp4@0-0.5", "n=7.mp4", "data.moving_digits=null"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("2 examples (1.mp4@0-0.5, n=7.mp4): 12 in the gallery, ") and len(printed) == 4
