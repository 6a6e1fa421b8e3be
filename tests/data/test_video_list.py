"""Video lists: accepted files, and errors with file and line for the others."""

import re
from pathlib import Path

import pytest

from vidssl.base.errors import DataError
from vidssl.base.output_folder import MARK
from vidssl.data.find_same_videos import own_rows
from vidssl.data.video_list import join_lists, read_list
from vidssl.data.write_lists import check_beside, copy_list, write_lists

AWKWARD = [
    *("a#b.mp4", "a;b.mp4", "a&b.mp4", "a!b (1).mp4", "[x]/it's.mp4", "two  blanks .mp4", " leading.mp4", "-i.mp4"),
    *("Zoë/動画.mp4", 'quote"d, with comma.mp4', "50%.mp4", "line\u2028separator.mp4", "a:b.mp4"),
]


@pytest.fixture
def write(tmp_path):
    """Write a list of bytes or text, with classes beside it; return its path."""

    def make(content, classes="", root=None):
        path = tmp_path / "list.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if classes:
            (tmp_path / "classes.txt").write_text(classes)
        if root is not None:
            (tmp_path / "root.txt").write_text(root)
        return path

    return make


def refusal(path, **settings):
    with pytest.raises(DataError) as caught:
        read_list(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"path,label\na.mp4,1\nb.mp4,0\n",
        b"\xef\xbb\xbfpath,label\na.mp4,1\nb.mp4,0\n",  # byte-order mark
        b"path,label\r\na.mp4,1\r\nb.mp4,0\r\n",
        b"path,label\n\na.mp4,1\n\nb.mp4,0",  # empty lines, no last line break
        b"path,label\n   \na.mp4,1\n\t\r\nb.mp4,0\n  ",
        b"label,path\n1,a.mp4\n0,b.mp4\n",
        b' path , label \n"a.mp4","1"\nb.mp4,0\n',
    ],
    ids=["plain", "bom", "crlf", "empty lines", "blank lines", "columns in another order", "quoted"],
)
def test_14_equivalent_files_give_the_same_rows(write, content, tmp_path):
    listed = read_list(write(content, "no\nyes\n"))
    assert listed.names == ("a.mp4", "b.mp4")
    assert [(r.path, r.label) for r in listed.records] == [(str(tmp_path / "a.mp4"), 1), (str(tmp_path / "b.mp4"), 0)]
    assert listed.classes == ("no", "yes")
    assert [listed.class_name(n) for n in (-1, 0, 1)] == ["?", "no", "yes"]


def test_a_list_of_paths_has_no_labels(write):
    listed = read_list(write("path\na.mp4\nb.mp4\n", "no\nyes\n"))
    assert [r.label for r in listed.records] == [-1, -1]
    assert [r.start for r in listed.records] == [None, None]


def test_start_and_end(write):
    listed = read_list(write("path,start,end\na.mp4,0,1.5\na.mp4,1.5,\na.mp4,,3\n"))
    assert [(r.start, r.end) for r in listed.records] == [(0.0, 1.5), (1.5, None), (None, 3.0)]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("file,label\na.mp4,0\n", 1, "header 'file,label'"),
        ("a.mp4,0\nb.mp4,1\n", 1, "is not path"),
        ("path,label,path\na,0,b\n", 1, "is not path"),
        ("path,label,camera\na,0,b\n", 1, "is not path"),
        ("path label\na.mp4 0\n", 1, "is not path"),
        ("", 1, "is not path"),
        ("path,label,labels\na.mp4,0,0\n", 1, "header 'path,label,labels' is not path[,label or labels]"),
        ("path,labels\na.mp4,0 x\n", 2, "labels are whole numbers"),
        ("path,labels\na.mp4,0 0?\n", 2, "0 is negative or given twice"),
        ("path,label\na.mp4,0\nb.mp4\n", 3, "1 fields, the header has 2"),
        ("path,label\na, b.mp4,0\n", 2, "3 fields, the header has 2; quote names with commas"),
        ("path,label\n,0\n", 2, "the path is empty"),
        ("path,label\na.mp4,0\n   ,0\n", 3, "the path is empty"),
        ("path,label\n\n ,\n,1\n", 4, "the path is empty"),
        ("path,label\na.mp4,\n", 2, "'' is not a whole number: labels are whole numbers"),
        ("path,label\na.mp4,one\n", 2, "'one' is not a whole number: labels are whole numbers"),
        ("path,label\na.mp4,1.5\n", 2, "'1.5' is not a whole number: labels are whole numbers"),
        ("path,label\na.mp4,1_0\n", 2, "'1_0' is not a whole number"),
        ("path,label\na.mp4,٣\n", 2, "'٣' is not a whole number"),
        ("path,labels\na.mp4,1_0\n", 2, "'1_0' is not a whole number"),
        ("path,labels\na.mp4,٣?\n", 2, "'٣' is not a whole number"),
        ("path,start\na.mp4,1_0\n", 2, "'1_0' is not a number"),
        ("path,fps\na.mp4,２５\n", 2, "'２５' is not a number"),
        ("path,label\na.mp4,riding a bike\n", 2, "for names of classes give the folder of the videos, and labels=FILE"),
        ("path,labels\na.mp4,run walk\n", 2, "for names of classes give the folder of the videos, and labels=FILE"),
        ("path,label\n.,0\n", 2, "'.' is the root itself"),
        ("path,label\nx/..,0\n", 2, "'x/..' is the root itself"),
        ("path,label\na.mp4,0\nx/../a.mp4,0\n", 3, "'x/../a.mp4', label 0, is also in line 2"),
        ("path,label\na.mp4,1\nb.mp4,2\n", 3, "label 2 is out of range: classes are 0 to 1, -1 is unknown"),
        ("path,label\na.mp4,-2\n", 2, "label -2 is out of range"),
        ("path,label\na.mp4,0\nb.mp4,1\na.mp4,0\n", 4, "a.mp4', label 0, is also in line 2, label 0: delete one"),
        ("path,label\na.mp4,0\nb.mp4,1\n./a.mp4,0\n", 4, "a.mp4', label 0, is also in line 2, label 0: delete one"),
        ("path,label\na.mp4,0\na.mp4,1\n", 3, "'a.mp4', label 1, is also in line 2, label 0: delete one"),
        ("path,label,start,end\na.mp4,0,0,1\nx//a.mp4,0,,\nx/a.mp4,1,0,\n", 4, "label 1, is also in line 3, label 0"),
        ('path,label\na.mp4,0\n"b\nc.mp4",x\n', 4, "'x' is not a whole number: labels are whole"),
        ("path,label\na.mp4,99999999999999999999\n", 2, "is out of range"),
        ("path,label\na.mp4,1000000000000000\n", 2, "is out of range"),
        ("path,start,end\na.mp4,2,1\n", 2, "end 1.0 is not after start 2.0"),
        ("path,start,end\na.mp4,soon,1\n", 2, "'soon' is not a number: start, end, fps, x, y are numbers"),
        ("path,start,end\na.mp4,-1,1\n", 2, "must be finite and 0 or more"),
        ("path,start,end\na.mp4,nan,1\n", 2, "must be finite and 0 or more"),
        ("path,start,end\na.mp4,0,inf\n", 2, "must be finite and 0 or more"),
        ("path,label\n" + "x" * 1_000_000 + ",0\n", 2, "not CSV"),
        ('path,label\n"open' + "\nx,0" * 50_000, None, "not CSV"),
    ],
)
def test_14_each_error_names_file_and_line(write, content, line, reason):
    path = write(content, "no\nyes\n")
    message = refusal(path)
    assert reason in message
    assert re.match(rf"{re.escape(str(path))}:{line if line is not None else '[0-9]+'}: ", message)
    assert len(message) < 1000


def test_a_file_may_be_in_several_rows(write):
    listed = read_list(write("path,label,start,end\na.mp4,0,0,1\na.mp4,1,1,2\na.mp4,1,,\na.mp4,0,,1.5\n"))
    assert [record.label for record in listed.records] == [0, 1, 1, 0]


@pytest.mark.parametrize("content", ["/data/a.mp4 0\n/data/b.mp4 1\n", "a.mp4,0\nb.mp4,1\n", "a 300 5\n"])
def test_lists_of_other_projects_name_the_converter(write, content):
    assert "vidssl prepare list converts other lists" in refusal(write(content))


def test_14_files_that_are_not_lists(write, tmp_path):
    assert "cannot read list" in refusal(tmp_path / "none.csv")
    assert "cannot read list" in refusal(tmp_path)
    assert "cannot read list" in refusal("")  # an empty variable of a shell
    assert "no rows" in refusal(write("path,label\n"))
    assert "NUL" in refusal(write(b"path,label\na\0.mp4,0\n"))
    assert "UTF-8" in refusal(write(b"path,label\n\xff\xfe.mp4,0\n"))


def test_14_invalid_roots_and_classes(write, tmp_path):
    path = write("path\na.mp4\n")
    (tmp_path / "root.txt").write_bytes("\ufeff/data\r\n\n".encode())
    assert str(read_list(path).root) == "/data"
    for content, reason in ((b"", "is empty"), (b"  \t\n", "is empty"), (b"/d\xe9j\xe0\n", "not UTF-8")):
        (tmp_path / "root.txt").write_bytes(content)
        assert reason in refusal(path) and "root.txt" in refusal(path)
    (tmp_path / "root.txt").unlink()
    for content in ("", "\n", "\ufeff\r\n"):
        (tmp_path / "classes.txt").write_text(content, encoding="utf-8")
        assert refusal(path).startswith(f"{tmp_path / 'classes.txt'} is empty: ")
    (tmp_path / "classes.txt").write_text("a\u2028b\nc\n")
    assert read_list(path).classes == ("a\u2028b", "c")
    for content, reason in (("a\nb\na\n", "classes 0 and 2 are both 'a'"), ("a\n\nb\n", "class 1 has no name")):
        (tmp_path / "classes.txt").write_text(content)
        assert refusal(path).startswith(f"{tmp_path / 'classes.txt'}: {reason}")


@pytest.mark.parametrize("label", ["1.0", "1.000", "+1", " 1 ", "01"])
def test_labels_as_pandas_writes_them(write, label):
    """A column that has missing values is one of floats."""
    listed = read_list(write(f"path,label\na.mp4,{label}\nb.mp4,-1.0\n"))
    assert listed.labels.tolist() == [1, -1]
    assert listed.fingerprint == read_list(write("path,label\na.mp4,1\nb.mp4,-1\n")).fingerprint


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("name", ["x/../a.mp4", "x/./..//a.mp4", "x/y/../../a.mp4", "link/../x/../a.mp4"])
def test_a_file_by_another_way_is_a_duplicate(write, tmp_path, name, through):
    """`..` after a link leads to the folder above its target."""
    root = tmp_path / "root"
    (root / "x" / "y").mkdir(parents=True)
    (root / "link").symlink_to("x/y")
    (tmp_path / "other").symlink_to("root")
    base = tmp_path / "other" if through else root
    if name.startswith("link"):
        assert read_list(write("path\na.mp4\nlink/../a.mp4\n", root=str(base))).names == ("a.mp4", "link/../a.mp4")
        name = "link/../../a.mp4"
    assert "is also in line 2" in refusal(write(f"path\na.mp4\n{name}\n", root=str(base)))


def test_blanks_around_a_path(write, tmp_path):
    """They belong to a name, unless only the name without them exists."""
    (tmp_path / "a.mp4").touch()
    (tmp_path / " b.mp4").touch()
    assert ":2: ' a.mp4 ' has blanks around it, and the file is 'a.mp4'" in refusal(write("path\n a.mp4 \n"))
    assert read_list(write("path\n b.mp4\n c.mp4 \n")).names == (" b.mp4", " c.mp4 ")


URLS = [
    *("http://127.0.0.1/a.mp4", "https://example.org/a.mp4", "rtsp://camera/1", "file:///etc/passwd", "file:a.mp4"),
    *("concat:a.mp4|b.mp4", "pipe:0", "data:video/mp4;base64,AAAA", "subfile,,start,0,end,9,,:a.mp4"),
    "crypto+http://x/a",
]


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize("allow_external", [False, True])
def test_12_urls_are_refused(write, name, allow_external):
    path = write(f'path\n"{name}"\n')
    message = refusal(path, allow_external=allow_external)
    assert "is a URL" in message and message.startswith(f"{path}:2: ")


def test_12_paths_that_leave_the_root(write, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.mp4").touch()
    (inside / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "own.mp4").touch()
    (inside / "good.mp4").symlink_to(inside / "own.mp4")
    # A tar may be a link itself, or lie behind one.
    for tar in (tmp_path / "secret.tar", inside / "own.tar"):
        tar.touch()
    (inside / "link.tar").symlink_to(tmp_path / "secret.tar")
    (inside / "good.tar").symlink_to(inside / "own.tar")
    tars = ("link.tar#a.mp4", "link.tar#sub/a.mp4", "folder/secret.tar#a.mp4", "../secret.tar#a.mp4")
    others = ("../secret.mp4", "/etc/passwd", str(tmp_path / "secret.mp4"), "link.mp4", "folder/secret.mp4")
    for name in (*others, *tars):
        path = write(f"path\n{name}\n", root=f"{inside}\n")
        message = refusal(path)
        assert "leaves the root" in message and message.startswith(f"{path}:2: ")
        record = read_list(path, allow_external=True).records[0]
        assert Path(record.path) == inside / name
    for name in ("good.mp4", "own.mp4", "x/../own.mp4", "own.tar#a.mp4", "good.tar#sub/a.mp4"):
        assert read_list(write(f"path\n{name}\n")).names == (name,)


def outside(root, name):
    """Whether a name leaves the root, each path resolved by itself."""
    return not (root / name).resolve().is_relative_to(root.resolve())


def test_12_each_path_is_checked_as_if_it_were_resolved_alone(write, tmp_path):
    """Folders are resolved once for all rows: what is accepted and what is refused must not change by that."""
    root, away = tmp_path / "set" / "root", tmp_path / "away"
    for folder in (root / "a" / "b", root / "c", away / "d", tmp_path / "set" / "root-2"):
        folder.mkdir(parents=True)
    for file in (root / "a/b/v.mp4", root / "v.mp4", away / "d/v.mp4", away / "v.mp4", root.with_name("v.mp4")):
        file.touch()
    links = {
        "a/in": root / "c",  # a link in the middle that stays inside
        "a/out": away,  # one that leaves
        "c/back": away / "home",  # one that leaves and comes back
        "c/leaf.mp4": Path("../a/b/v.mp4"),  # of a file, inside
        "c/away.mp4": Path("../../../away/v.mp4"),  # of a file, outside
        "c/chain.mp4": root / "c/away.mp4",
        "c/gone.mp4": root / "nothing.mp4",
        "c/gone_away.mp4": tmp_path / "nothing.mp4",
        "c/sibling.mp4": tmp_path / "set/root-2/v.mp4",  # its path begins as the root's does
        "up": Path(".."),
        "self": Path(),
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    (away / "home").symlink_to(root / "a")
    through = tmp_path / "link_to_root"
    through.symlink_to(root)
    parts = ["a/b/v.mp4", "v.mp4", "a/in/v.mp4", "a/out/v.mp4", "a/out/d/v.mp4", "c/back/b/v.mp4", "a/out/home/b/v.mp4"]
    parts += [name for name in links if name.startswith("c/")] + ["up/v.mp4", "up/root/v.mp4", "self/self/v.mp4", "."]
    parts += [
        "a/../v.mp4",
        "a/b/../../../root/v.mp4",
        "../root-2/v.mp4",
        "a/in/../v.mp4",
        "a/out/../v.mp4",
        "a/out/d/..",
    ]
    parts += [
        "missing/../v.mp4",
        "missing/../../v.mp4",
        "../root/v.mp4",
        "..",
        "up",
        "self",
        "./a/./b//v.mp4",
        "a/in/..",
    ]
    parts += [str(root / "v.mp4"), str(away / "v.mp4"), str(through / "v.mp4"), "x" * 300 + "/v.mp4", "a/" + "y" * 300]
    for base in (root, through):
        verdicts = {name: outside(base, name) for name in parts}
        assert 8 < sum(verdicts.values()) < len(parts) - 8
        for name, leaves in verdicts.items():
            path = write(f'path\nother.mp4\n"{name}"\n', root=f"{base}\n")
            if leaves:
                assert f"{path}:3: " in refusal(path) and "leaves the root" in refusal(path), name
            elif (base / name).resolve() == root.resolve():
                assert f"{path}:3: {name!r} is the root itself" in refusal(path), name
            else:
                assert read_list(path).names == ("other.mp4", name)
                assert read_list(path).records[1].path == str(base / name)
        known = ("./a/./b//v.mp4", str(base / "v.mp4"))  # the same file as another one
        sound = [name for name in parts if not verdicts[name] and name not in known and ".." not in name.split("/")]
        sound = [name for name in sound if (base / name).resolve() != root.resolve()]
        assert len(sound) > 6
        assert read_list(write("path\n" + "\n".join(sound), root=f"{base}\n")).names == tuple(sound)


def test_links_that_form_a_loop_are_one_file(write, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for one, other in (("a", "b"), ("b", "a"), ("own", "own"), ("deep", "deep/deeper")):
        (root / one).symlink_to(root / other)
    for name in ("a/x.mp4", "own", "own/x/y.mp4", "deep/x.mp4", "a"):
        path = write(f"path\nfine.mp4\n{name}\n", root=f"{root}\n")
        assert read_list(path).names == ("fine.mp4", name)  # opening it fails
    (root / "fine.mp4").touch()
    both = read_list(path)
    assert own_rows(both, both).tolist() == [[0, 0], [1, 1]]


def test_root_of_the_file_and_of_the_caller(write, tmp_path):
    path = write("path\na.mp4\n", root="/data/set\n")
    assert read_list(path).root == Path("/data/set")
    assert read_list(path).records[0].path == "/data/set/a.mp4"
    assert read_list(path, root=tmp_path / "here").records[0].path == str(tmp_path / "here" / "a.mp4")
    (tmp_path / "root.txt").write_bytes(b"/data/a set\r\n")
    assert read_list(path).root == Path("/data/a set")
    (tmp_path / "root.txt").unlink()
    assert read_list(path).records[0].path == str(tmp_path / "a.mp4")


def test_written_lists_are_read_back(tmp_path):
    rows = [(name, n % 3 - 1) for n, name in enumerate(AWKWARD)]
    classes = ["first, with comma", "zweite Größe"]
    write_lists(tmp_path / "lists", tmp_path / "my videos", {"some": rows, "plain": [("a.mp4", -1)]}, classes)
    listed = read_list(tmp_path / "lists" / "some.csv")
    assert list(zip(listed.names, [r.label for r in listed.records], strict=True)) == rows
    assert listed.classes == tuple(classes)
    assert listed.root == tmp_path / "my videos"
    assert [r.path for r in listed.records] == [str(tmp_path / "my videos" / name) for name in AWKWARD]
    assert (tmp_path / "lists" / "plain.csv").read_text() == "path\na.mp4\n"
    with pytest.raises(DataError, match=r"root\.txt belongs to other lists"):
        write_lists(tmp_path / "lists", tmp_path / "other videos", {"more": rows}, classes)


def test_fingerprint_depends_on_the_rows_and_not_on_the_root(write, tmp_path):
    path = write("path,label,start,end\na.mp4,0,0,1\nb.mp4,1,,\n")
    here = read_list(path).fingerprint
    assert here == read_list(path, root="/elsewhere").fingerprint
    for other in ("a.mp4,1,0,1\nb.mp4,1,,", "a.mp4,0,0,2\nb.mp4,1,,", "c.mp4,0,0,1\nb.mp4,1,,", "a.mp4,0,0,1"):
        assert read_list(write(f"path,label,start,end\n{other}\n")).fingerprint != here


def test_a_list_is_a_sequence_of_rows(write, tmp_path):
    listed = read_list(write("path,label,start\na.mp4,1,\nZoë/動画.mp4,0,2.5\nc.mp4,-1,0\n"))
    names, records = listed.names, listed.records
    assert (names[-1], len(names), tuple(names)) == ("c.mp4", 3, ("a.mp4", "Zoë/動画.mp4", "c.mp4"))
    assert names[1:] == ("Zoë/動画.mp4", "c.mp4")
    assert names == list(names) and names != ["a.mp4"] and next(reversed(records)) == records[2]
    assert records[1] == type(records[0])(str(tmp_path / "Zoë/動画.mp4"), 0, 2.5)
    assert [r.start for r in records] == [None, 2.5, 0.0] and listed.labels.tolist() == [1, 0, -1]
    some = listed.rows([2, 0, 2])
    assert (some.names, some.records) == (("c.mp4", "a.mp4", "c.mp4"), (records[2], records[0], records[2]))
    assert some.labels.tolist() == [-1, 1, -1] and listed.rows([]).names == ()
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            records[wrong]


def test_copies_are_atomic(write, tmp_path):
    """Copied lists and what lies beside them get their names together, when all of them are on disk."""
    listed = read_list(write("path,label\n  \na.mp4,0\n\nb.mp4,1\n", "no\nyes\n"))
    out = tmp_path / "out"
    path = copy_list(listed, out, tmp_path, ["new.mp4", None])
    assert path.read_text() == "path,label\nnew.mp4,0\n"
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert sorted(before) == [MARK, "classes.txt", "list.csv", "root.txt"]
    with pytest.raises(ValueError, match="zip"):
        copy_list(listed, out, tmp_path, ["only one.mp4"])
    (out / "root.txt").unlink()
    (out / "root.txt").mkdir()
    with pytest.raises(DataError, match=r"root\.txt: it is a folder|cannot read list"):
        copy_list(listed, out, tmp_path, ["a.mp4", "b.mp4"])
    (out / "root.txt").rmdir()
    assert {name: (out / name).read_bytes() for name in ("list.csv", "classes.txt")} == {
        name: before[name] for name in ("list.csv", "classes.txt")
    }
    assert sorted(file.name for file in out.iterdir()) == [MARK, "classes.txt", "list.csv"]


def test_classes_and_root_may_have_a_byte_order_mark(tmp_path):
    (tmp_path / "classes.txt").write_bytes("\ufeffno\r\nyes\r\n".encode())
    (tmp_path / "root.txt").write_text(f"{tmp_path}\n", encoding="utf-8-sig")
    check_beside(tmp_path, tmp_path, ["no", "yes"])
    with pytest.raises(DataError, match="belongs to other lists"):
        check_beside(tmp_path, tmp_path, ["no", "maybe"])
    (tmp_path / "classes.txt").write_bytes(b"d\xe9j\xe0\n")
    with pytest.raises(DataError, match="not UTF-8"):
        check_beside(tmp_path, tmp_path, ["no"])


def test_several_labels_a_row(write):
    videos = read_list(write("path,labels\na.jpg,2 0\nb.jpg,\nc.jpg,1 2?\n", classes="x\ny\nz\n"))
    assert videos.targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, -1]]
    assert videos.rows([2]).targets.tolist() == [[0, 1, -1]] and videos.labels.tolist() == [-1, -1, -1]
    assert read_list(write("path,labels\na.jpg,2 0\nb.jpg,1\nc.jpg,1 2?\n")).targets.shape == (3, 3)


def test_sets_of_labels_are_part_of_the_fingerprint(write):
    texts = [f"path,labels\na.jpg,{labels}\nb.jpg,0\n" for labels in ("0", "1", "1?")]
    assert len({read_list(write(text)).fingerprint for text in texts}) == 3


def test_sets_of_labels_are_written_and_joined(write, tmp_path):
    videos = read_list(write("path,labels\na.jpg,2 0\nc.jpg,1 2?\n", classes="x\ny\nz\n"))
    rows = [videos.records.row(n) for n in range(2)]
    write_lists(tmp_path / "out", tmp_path, {"again": rows}, videos.classes)
    again = read_list(tmp_path / "out/again.csv")
    assert again.targets.tolist() == videos.targets.tolist()
    assert join_lists([videos, again], [1, 1]).targets.tolist() == 2 * videos.targets.tolist()
    single = read_list(write("path,label\na.jpg,2\n", classes="x\ny\nz\n"))
    joined = join_lists([videos, single], [1, 1])
    assert joined.targets is None and joined.labels.tolist() == [-1, -1, -1]
