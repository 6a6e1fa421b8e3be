"""Videos in a tar, read in place: the same frames and the same errors as those of the unpacked files."""

import io
import tarfile

import numpy as np
import pytest

from vidssl.apps.check import check
from vidssl.apps.shrink import shrink
from vidssl.base.errors import ConfigError, DataError, DecodeError
from vidssl.base.keyed_generators import generator
from vidssl.data.list_identity import identify
from vidssl.data.read_input import read_input
from vidssl.data.video_list import read_list
from vidssl.video import open_container as container
from vidssl.video.reader import open_video, state_of_video


def write_tar(path, files, **options):
    """Write files, by member name, into a tar."""
    with tarfile.open(path, options.pop("mode", "w"), **options) as tar:
        for name, file in files.items():
            tar.add(file, arcname=name)
    return path


def test_members_equal_the_files_bit_by_bit(tmp_path, real):
    """All containers and codecs of the folder, in random order of frames."""
    names = sorted(path.name for path in (real / "containers").iterdir() if path.suffix not in (".md", ".txt"))
    tar = write_tar(tmp_path / "a, b #1.tar", {f"deep/{name}": real / "containers" / name for name in names})
    compared = 0
    for n, name in enumerate(names):
        path = f"{tar}#deep/{name}"
        try:
            with open_video(real / "containers" / name) as video:
                expected = generator(0, n).integers(0, video.meta.num_frames, 6)
                meta, frames = video.meta, video.frames(expected)
                whole = list(video.iter_frames())
        except DecodeError as error:
            with pytest.raises(DecodeError) as caught, open_video(path) as member:
                member.frames(expected)
                list(member.iter_frames())
            reason = str(error).removeprefix(f"{real}/containers/{name}")
            assert str(caught.value).removeprefix(f"{tar}#deep/{name}") == reason
            continue
        with open_video(path) as member:
            assert member.meta == meta
            np.testing.assert_array_equal(member.frames(expected), frames)
            for one, other in zip(member.iter_frames(), whole, strict=True):
                np.testing.assert_array_equal(one, other)
        compared += 1
    assert compared > 20


@pytest.fixture
def tar(tmp_path, write_video, numbered):
    files = {}
    for number in range(3):
        files[f"v/{number}.mp4"] = write_video(tmp_path / f"{number}.mp4", numbered(30)[number:], gop=5, b_frames=2)
    files["notes.txt"] = tmp_path / "notes.txt"
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "in").mkdir()
    return write_tar(tmp_path / "in/videos.tar", files)


def test_lists_and_commands(tmp_path, tar, number_of):
    listed = read_input(tar)
    assert listed.names == [f"videos.tar#v/{number}.mp4" for number in range(3)]
    (tar.parent / "list.csv").write_text("path,label\n" + "".join(f"{name},0\n" for name in listed.names))
    by_list = read_list(tar.parent / "list.csv")
    files = identify(by_list)
    several = read_input([f"{tar}#v/2.mp4", tmp_path / "0.mp4"])
    assert several.names == ["in/videos.tar#v/2.mp4", "0.mp4"]
    sizes = [(tmp_path / f"{number}.mp4").stat().st_size for number in range(3)]
    assert (files["files"], files["missing"], files["bytes"]) == (3, 0, sum(sizes))
    assert state_of_video(by_list.records[1].path) == (sizes[1], tar.stat().st_mtime_ns)
    checked = check(tar, out=tmp_path / "checked")
    assert (checked.kept, checked.rows) == (3, 3)
    small = shrink(tar, out=tmp_path / "small", to="frames", short_side=16, quality=95)
    whole = shrink(tar, out=tmp_path / "files", short_side=16, quality=12)
    assert small.made == whole.made == 3
    assert shrink(tar, out=tmp_path / "small", to="frames", short_side=16, quality=95).kept == 3
    for result in (small, whole):
        for number, record in enumerate(read_list(result.list).records):
            with open_video(record.path) as copy:
                frames = np.repeat(np.repeat(copy.frames([9, 4]), 2, axis=2), 2, axis=3)
                assert number_of(frames) == [9 + number, 4 + number]


def test_a_changed_tar_is_read_again(tmp_path, tar, write_video, numbered, number_of):
    path = f"{tar}#v/0.mp4"
    with open_video(path) as video:
        assert number_of(video.frames([29])) == [29]
    write_tar(tar, {"x": tmp_path / "notes.txt", "v/0.mp4": write_video(tmp_path / "n.mp4", numbered(60)[40:])})
    with open_video(path) as video:
        assert (video.meta.num_frames, number_of(video.frames([0, 19]))) == (20, [40, 59])


def test_names_with_a_dot(tmp_path, tar, number_of):
    """`tar -cf x.tar .` writes `./` before each name."""
    dotted = write_tar(tmp_path / "dotted.tar", {"./v/0.mp4": tmp_path / "0.mp4"})
    for name in ("v/0.mp4", "./v/0.mp4"):
        with open_video(f"{dotted}#{name}") as video:
            assert number_of(video.frames([7])) == [7]
    assert read_input(dotted).names == ["dotted.tar#v/0.mp4"]


def test_a_file_of_the_whole_name_comes_first(tmp_path, tar, write_video, numbered, number_of):
    write_video(tmp_path / "in/videos.tar#v/0.mp4", numbered(9)[4:])
    with open_video(f"{tar}#v/0.mp4") as video:
        assert number_of(video.frames([0])) == [4]


def test_errors_are_one_line(tmp_path, tar):
    with pytest.raises(DecodeError, match=r"videos\.tar#v/9\.mp4: the tar has no file of this name"):
        open_video(f"{tar}#v/9.mp4")
    with pytest.raises(DecodeError, match=r"none\.tar#v/9\.mp4: No such file$"):
        open_video(f"{tmp_path}/none.tar#v/9.mp4")
    for backend in ("decord", "torchcodec"):
        with pytest.raises(ConfigError, match=f"{backend} needs a file, .* use data.backend=pyav"):
            open_video(f"{tar}#v/0.mp4", backend)
    packed = write_tar(tmp_path / "gz.tar", {"0.mp4": tmp_path / "0.mp4"}, mode="w:gz")
    with pytest.raises(DecodeError, match=r"gz\.tar: not an uncompressed tar, or damaged: .*; unpack it"):
        open_video(f"{packed}#0.mp4")
    content = tar.read_bytes()
    tar.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        DecodeError, match=r"videos\.tar: not an uncompressed tar, or damaged: (unexpected|empty|trunc)"
    ):
        open_video(f"{tar}#v/0.mp4")
    others = write_tar(tmp_path / "others.tar", {"a.png": tmp_path / "notes.txt", "b.mp4": tmp_path / "notes.txt"})
    with pytest.raises(DecodeError, match=r"a\.png: images in a tar are not read: .*vidssl shrink --to frames"):
        open_video(f"{others}#a.png")
    with pytest.raises(DecodeError, match=r"others\.tar#b\.mp4: not a video"):
        open_video(f"{others}#b.mp4")
    with tarfile.open(tmp_path / "empty.tar", "w") as empty:
        empty.addfile(tarfile.TarInfo("a.mp4"), io.BytesIO())
    with pytest.raises(DecodeError, match=r"empty\.tar#a\.mp4: the file is empty"):
        open_video(f"{tmp_path}/empty.tar#a.mp4")
    with pytest.raises(DataError, match=r"no videos in .*none\.tar; known extensions"):
        read_input(write_tar(tmp_path / "none.tar", {"notes.txt": tmp_path / "notes.txt"}))


def test_other_files_get_no_other_protocol(tmp_path, tar, monkeypatch):
    """Only a member of a tar is opened with `subfile`; what a video file refers to never is."""
    opened = []
    real_open = container.av.open
    monkeypatch.setattr(
        container.av, "open", lambda url, **o: opened.append((url, o["options"])) or real_open(url, **o)
    )
    open_video(tmp_path / "0.mp4").close()
    assert {options["protocol_whitelist"] for _, options in opened} == {"file"}
    opened.clear()
    open_video(f"{tar}#v/0.mp4").close()
    assert {options["protocol_whitelist"] for _, options in opened} == {"subfile,file"}
