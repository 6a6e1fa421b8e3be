"""Lists: what is read, what is refused, and the line that every refusal names."""

import re
from pathlib import Path

import pytest

from vidssl.data.records import read_list, write_lists
from vidssl.errors import DataError

AWKWARD = [
    "a#b.mp4",
    "a;b.mp4",
    "a&b.mp4",
    "a!b (1).mp4",
    "[x]/it's.mp4",
    "two  blanks .mp4",
    " leading.mp4",
    "-i.mp4",
    "Zoë/動画.mp4",
    'quote"d, with comma.mp4',
    "50%.mp4",
    "line\u2028separator.mp4",
    "a:b.mp4",
]


@pytest.fixture
def write(tmp_path):
    """Write a list of bytes or text, with classes beside it; give its path."""

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
        b"label,path\n1,a.mp4\n0,b.mp4\n",
        b' path , label \n"a.mp4","1"\nb.mp4,0\n',
    ],
    ids=["plain", "bom", "crlf", "empty lines", "columns in another order", "quoted"],
)
def test_14_the_same_rows_in_all_spellings(write, content, tmp_path):
    found = read_list(write(content, "no\nyes\n"))
    assert found.names == ("a.mp4", "b.mp4")
    assert [(r.path, r.label) for r in found.records] == [
        (str(tmp_path / "a.mp4"), 1),
        (str(tmp_path / "b.mp4"), 0),
    ]
    assert found.classes == ("no", "yes")
    assert [found.class_name(n) for n in (-1, 0, 1)] == ["?", "no", "yes"]


def test_commas_and_quotes_in_names(write):
    found = read_list(write('path,label\n"a, b.mp4",0\n"say ""hi"".mp4",1\n'))
    assert found.names == ("a, b.mp4", 'say "hi".mp4')
    assert found.class_name(1) == "1"  # there are no names


def test_a_list_of_paths_has_no_labels(write):
    found = read_list(write("path\na.mp4\nb.mp4\n", "no\nyes\n"))
    assert [r.label for r in found.records] == [-1, -1]
    assert [r.start for r in found.records] == [None, None]


def test_start_and_end(write):
    found = read_list(write("path,start,end\na.mp4,0,1.5\na.mp4,1.5,\na.mp4,,3\n"))
    assert [(r.start, r.end) for r in found.records] == [(0.0, 1.5), (1.5, None), (None, 3.0)]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("file,label\na.mp4,0\n", 1, "header 'file,label'"),
        ("a.mp4,0\nb.mp4,1\n", 1, "is not path"),
        ("path,label,path\na,0,b\n", 1, "is not path"),
        ("path,label,camera\na,0,b\n", 1, "is not path"),
        ("path label\na.mp4 0\n", 1, "is not path"),
        ("", 1, "is not path"),
        ("path,label\na.mp4,0\nb.mp4\n", 3, "1 fields, the header has 2"),
        ("path,label\na, b.mp4,0\n", 2, "3 fields, the header has 2; quote names with commas"),
        ("path,label\n,0\n", 2, "the path is empty"),
        ("path,label\na.mp4,0\n   ,0\n", 3, "the path is empty"),
        ("path,label\na.mp4,\n", 2, "label '' is not a whole number"),
        ("path,label\na.mp4,one\n", 2, "label 'one' is not a whole number"),
        ("path,label\na.mp4,1.0\n", 2, "label '1.0' is not a whole number"),
        ("path,label\na.mp4,1\nb.mp4,2\n", 3, "label 2 is out of range; classes.txt has 2 classes, from 0"),
        ("path,label\na.mp4,-2\n", 2, "label -2 is out of range"),
        ("path,label\na.mp4,0\nb.mp4,1\na.mp4,0\n", 4, "the same row stands in line 2"),
        ('path,label\na.mp4,0\n"b\nc.mp4",x\n', 4, "label 'x'"),
        ("path,start,end\na.mp4,2,1\n", 2, "end 1.0 is not after start 2.0"),
        ("path,start,end\na.mp4,soon,1\n", 2, "start 'soon' is not a number"),
        ("path,start,end\na.mp4,-1,1\n", 2, "0 or more"),
        ("path,start,end\na.mp4,nan,1\n", 2, "0 or more"),
        ("path,start,end\na.mp4,0,inf\n", 2, "0 or more"),
        ("path,label\n" + "x" * 1_000_000 + ",0\n", 2, "not CSV"),
        ('path,label\n"open' + "\nx,0" * 50_000, None, "not CSV"),
    ],
)
def test_14_each_refusal_names_file_and_line(write, content, line, reason):
    path = write(content, "no\nyes\n")
    message = refusal(path)
    assert reason in message
    assert re.match(rf"{re.escape(str(path))}:{line if line is not None else '[0-9]+'}: ", message)
    assert len(message) < 1000


def test_14_files_that_are_no_lists(write, tmp_path):
    assert "cannot read list" in refusal(tmp_path / "none.csv")
    assert "cannot read list" in refusal(tmp_path)
    assert "no rows" in refusal(write("path,label\n"))
    assert "NUL" in refusal(write(b"path,label\na\0.mp4,0\n"))
    assert "UTF-8" in refusal(write(b"path,label\n\xff\xfe.mp4,0\n"))


def test_14_roots_and_classes_that_are_no_text(write, tmp_path):
    path = write("path\na.mp4\n")
    (tmp_path / "root.txt").write_bytes("\ufeff/data\r\n\n".encode())
    assert str(read_list(path).root) == "/data"
    for content, reason in ((b"", "is empty"), (b"/d\xe9j\xe0\n", "not UTF-8")):
        (tmp_path / "root.txt").write_bytes(content)
        assert reason in refusal(path) and "root.txt" in refusal(path)
    (tmp_path / "root.txt").unlink()
    (tmp_path / "classes.txt").write_text("a\u2028b\nc\n")
    assert read_list(path).classes == ("a\u2028b", "c")


ADDRESSES = [
    "http://127.0.0.1/a.mp4",
    "https://example.org/a.mp4",
    "rtsp://camera/1",
    "file:///etc/passwd",
    "file:a.mp4",
    "concat:a.mp4|b.mp4",
    "pipe:0",
    "data:video/mp4;base64,AAAA",
    "subfile,,start,0,end,9,,:a.mp4",
    "crypto+http://x/a",
]


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize("allow_external", [False, True])
def test_12_addresses_are_refused(write, name, allow_external):
    path = write(f'path\n"{name}"\n')
    message = refusal(path, allow_external=allow_external)
    assert "is an address" in message and message.startswith(f"{path}:2: ")


def test_12_paths_that_leave_the_root(write, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.mp4").touch()
    (inside / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "own.mp4").touch()
    (inside / "good.mp4").symlink_to(inside / "own.mp4")
    for name in (
        "../secret.mp4",
        "/etc/passwd",
        str(tmp_path / "secret.mp4"),
        "link.mp4",
        "folder/secret.mp4",
    ):
        path = write(f"path\n{name}\n", root=f"{inside}\n")
        message = refusal(path)
        assert "leaves the root" in message and message.startswith(f"{path}:2: ")
        record = read_list(path, allow_external=True).records[0]
        assert Path(record.path) == inside / name
    for name in ("good.mp4", "own.mp4", "x/../own.mp4"):
        assert read_list(write(f"path\n{name}\n")).names == (name,)


def test_a_loop_of_links_is_refused(write, tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    path = write("path\na/x.mp4\n")
    try:
        found = read_list(path).names  # Python >= 3.13 follows no loop and finds nothing outside
    except DataError as error:
        assert str(error).startswith(f"{path}:2: ")
    else:
        assert found == ("a/x.mp4",)


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
    found = read_list(tmp_path / "lists" / "some.csv")
    assert list(zip(found.names, [r.label for r in found.records], strict=True)) == rows
    assert found.classes == tuple(classes)
    assert found.root == tmp_path / "my videos"
    assert [r.path for r in found.records] == [str(tmp_path / "my videos" / name) for name in AWKWARD]
    assert (tmp_path / "lists" / "plain.csv").read_text() == "path\na.mp4\n"


def test_fingerprint_tells_the_data_and_not_the_place(write, tmp_path):
    path = write("path,label,start,end\na.mp4,0,0,1\nb.mp4,1,,\n")
    here = read_list(path).fingerprint
    assert here == read_list(path, root="/elsewhere").fingerprint
    for other in (
        "a.mp4,1,0,1\nb.mp4,1,,",
        "a.mp4,0,0,2\nb.mp4,1,,",
        "c.mp4,0,0,1\nb.mp4,1,,",
        "a.mp4,0,0,1",
    ):
        assert read_list(write(f"path,label,start,end\n{other}\n")).fingerprint != here
