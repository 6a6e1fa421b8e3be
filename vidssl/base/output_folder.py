"""What a command may write: it never replaces what vidssl did not write.

Every command decides before its work begins, by one of two rules:

* A folder that a command fills, such as results, features, copies or a run, is empty or bears the *mark* of this kind
  of output, the hidden file `.vidssl.json`, with the same inputs: `claim`.
* A single file in a folder that belongs to the user, such as a list, is new, or the mark of the folder has its sha256:
  one that vidssl did not write, or that was edited since, is not replaced: `check_files` and `write_files`, and
  `check_file` and `writing_file` for a file that the block writes.

They raise a DataError, and leave all as it is, also if what is to be written is an input or a link, or cannot be
written.

What takes long also locks its folder with `only_run_in`, so that one run at a time writes there: a training, features,
a retrieval, each network of a test or an analysis, a check, copies, tracks. Other outputs have no lock, nor has a file
system without locks: there a warning says so.
"""

import errno
import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from vidssl.base import distributed
from vidssl.base.atomic import ELSEWHERE, file_hash, replacing, write_json, writing
from vidssl.base.command_line_and_notices import log_once
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.safe_parse import read_json

_log = logging.getLogger(__name__)
MARK = ".vidssl.json"
_FORMAT = 1
_LONGEST = 255  # bytes of a file name
_PATIENCE = 2.0  # seconds until the workers of a killed run have ended: they look for their parent every 0.5 s
_claimed: list[tuple[Path, bool]] = []  # folders that this process marked, and whether it created them
_DATA = ("copies", "images")  # kinds of outputs that are inputs of other commands


def claim(
    folder: Path, kind: str, *, inputs: Mapping[str, Path | str | None] | None = None, read: Iterable[Path | None] = ()
) -> None:
    """Decide that a command may fill a folder, create it, and mark it. Call it before the work, on any process.

    Args:
        folder: It may be reached through a link; what is written in it may not.
        kind: Of the output.
        inputs: What the output is made of, by name: files, or texts that describe it. The folder is refused if it holds
            this kind of other inputs; an input that is None is not compared.
        read: Other files that the command reads. No input may be a file of the folder.
    """
    _check_is_folder(folder)
    there, mark = _contents(folder)
    if there and mark["kind"] != kind:
        known = f"the folder holds {mark['kind']}" if mark["kind"] else f"vidssl has no record of writing it as {kind}"
        raise DataError(f"{there[0]} is there already, and {known}: {ELSEWHERE}")
    files = [path for name in mark["files"] if os.path.lexists(path := folder / name)]
    stated = {name: value for name, value in (inputs or {}).items() if value is not None}
    _check_plain([*there, *files], [*(value for value in stated.values() if isinstance(value, Path)), *read])
    made_of = {name: _relative(value, folder) if isinstance(value, Path) else value for name, value in stated.items()}
    known_inputs = mark["inputs"] if there else {}  # while nothing is written, a mistyped input may be corrected
    changes = [
        f"{name} {known_inputs[name]}, now {path}"
        for name, path in made_of.items()
        if known_inputs.get(name, path) != path
    ]
    if changes:
        raise DataError(f"{folder} holds {kind} of other inputs (relative to it: {'; '.join(changes)}): {ELSEWHERE}")
    if not distributed.is_main():  # known before the processes are joined: one of them writes the mark
        return
    check_writable(folder)
    if mark["kind"] is None:
        _claimed.append((folder, not folder.exists()))
    _write_mark(folder, {**mark, "kind": kind, "inputs": {**known_inputs, **made_of}})


def remove_unused() -> None:
    """Take back claims by which nothing was written, and remove folders made for them: after a command that failed."""
    while _claimed:
        folder, created = _claimed.pop()
        with suppress(OSError, DataError), ExitStack() as stack:
            there, mark = _contents(folder)
            if there:
                continue
            if (folder / ".lock").exists():  # an OSError if another run has locked it since
                _lock_file(folder, stack, fcntl.LOCK_EX)
            if mark["files"]:
                _write_mark(folder, {**mark, "kind": None, "inputs": {}})
                continue
            (folder / MARK).unlink(missing_ok=True)
            if created:
                (folder / ".lock").unlink(missing_ok=True)
                folder.rmdir()


def kind_of(folder: Path) -> str | None:
    """Return the kind of output that a folder was filled with; None: it is none of vidssl's, or not known."""
    with suppress(DataError):  # a damaged mark is an error where something is written
        kind: str | None = _read_mark(folder)["kind"]
        return kind
    return None


def outputs_in(folder: Path, root: Path) -> set[str]:
    """Return the names in a folder below `root` that a command filled, which are no videos of the user.

    Those are all, but for sets of data; and of copies too, if their originals are below the root.
    """
    with suppress(DataError):  # a damaged mark is an error where something is written
        mark = _read_mark(folder)
        is_output = mark["kind"] is not None and mark["kind"] not in _DATA
        if mark["kind"] == "copies" and folder != root:
            originals = Path(os.path.realpath(folder / mark["inputs"]["root"]))
            is_output = originals.is_dir() and originals.is_relative_to(os.path.realpath(root))
        return {path.name for path in folder.iterdir()} if is_output else set()
    return set()


def _contents(folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """List what is in a folder beside mark, lock and the single files that vidssl wrote; return also the mark."""
    with writing(folder):
        paths = sorted(folder.iterdir()) if folder.exists() else []
    mark = _read_mark(folder)  # after the list: the main process of a run writes the mark before all else
    known = {MARK, ".lock", *mark["files"]}
    return [path for path in paths if path.name not in known and not path.name.startswith(f".{MARK}.")], mark


# Single files -----------------------------------------------------------------------------------------------


def check_files(
    folder: Path, names: Iterable[str], inputs: Sequence[Path] = (), shared: Container[str] = ()
) -> list[Path]:
    """Decide that files may be written to a folder; call it before the work. Nothing is written.

    `inputs` are what the command reads; the first of them is what the files are made from: a file that was made from
    another one is not replaced. `shared` names files that belong to all others, such as `root.txt` of lists.

    Returns:
        Files that vidssl has no record of: `write_files` replaces them only if their content stays the same.
    """
    names = [*names]
    _check_is_folder(folder)
    check_writable(folder)
    for name in names:
        if "/" in name or name in ("", ".", "..", MARK) or len(os.fsencode(name)) > _LONGEST:
            raise DataError(f"{name[:60]!r} cannot be the name of a file in {folder}: choose another name")
    there = [folder / name for name in names if os.path.lexists(folder / name)]
    _check_plain(there, inputs)
    recorded, source = _read_mark(folder)["files"], _source(folder, inputs)
    unknown = []
    for path in there:
        if path.is_dir():
            raise DataError(f"cannot write {path}: it is a folder; {ELSEWHERE}")
        entry = recorded.get(path.name)
        if entry is None or not {None, file_hash(path)} & {*entry["sha256"]}:
            unknown.append(path)
        elif entry["from"] != source and path.name not in shared:
            origin = "a folder" if entry["from"] is None else f"{entry['from']} (relative to it)"
            raise DataError(f"{path} was made from {origin}, not from {source or 'a folder'}: {ELSEWHERE}")
    return unknown


def write_files(
    folder: Path, contents: Mapping[str, bytes], inputs: Sequence[Path] = (), shared: Container[str] = ()
) -> None:
    """Write files, all of them or none, and record them in the mark of the folder.

    Raises:
        DataError: As of `check_files`, or a file that vidssl did not write has other content, or one cannot be written.
    """
    unknown = check_files(folder, contents, inputs, shared)
    _refuse([path for path in unknown if path.read_bytes() != contents[path.name]])
    # The files are renamed when all of them are on disk, and recorded before.
    with writing(folder), ExitStack() as written:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            file = written.enter_context(replacing(folder / name))
            file.write(content)
            file.flush()
        _record(folder, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}, inputs)


@contextmanager
def writing_file(path: Path, inputs: Sequence[Path] = ()) -> Iterator[None]:
    """Record a file that the block writes atomically.

    Raises:
        DataError: As of `check_file`.
    """
    check_file(path, inputs)
    before = _read_mark(path.parent)["files"]
    _record(path.parent, {path.name: None}, inputs)  # None: any content, should the process be killed in the block
    try:
        yield
        _record(path.parent, {path.name: file_hash(path)}, inputs)
    except BaseException:
        mark = _read_mark(path.parent)
        del mark["files"][path.name]
        mark["files"] |= {path.name: before[path.name]} if path.name in before else {}
        _write_mark(path.parent, mark)
        raise


def check_file(path: Path, inputs: Sequence[Path] = ()) -> None:
    """Decide that `writing_file` may write a file; call it before the work."""
    # An export of a run that has gone on replaces the one of before: another source is no reason to refuse it.
    _refuse(check_files(path.parent, [path.name], inputs, shared=(path.name,)))


def _refuse(unknown: Sequence[Path]) -> None:
    if unknown:
        raise DataError(
            f"{unknown[0]} is there already, and was not written by vidssl or was changed since: choose another name "
            "or folder"
        )


def _record(folder: Path, hashes: Mapping[str, str | None], inputs: Sequence[Path]) -> None:
    """Record files that get their names next: a run that is killed before leaves the old ones, which stay known."""
    mark, source = _read_mark(folder), _source(folder, inputs)
    for name, digest in hashes.items():
        old = [file_hash(folder / name)] if (folder / name).exists() else []
        mark["files"][name] = {"sha256": [*dict.fromkeys([digest, *old])], "from": source}
    _write_mark(folder, mark)


def _source(folder: Path, inputs: Sequence[Path]) -> str | None:
    return _relative(inputs[0], folder) if inputs else None


def check_file_names(folder: Path, names: Iterable[str]) -> None:
    """Check that files of these names, which may have folders, can be written below a folder, through no link."""
    checked = set[Path]()
    for name in names:
        too_long = [part for part in name.split("/") if len(os.fsencode(part)) > _LONGEST]
        if too_long:
            raise DataError(f"{too_long[0][:60]}… cannot be the name of a file in {folder}: it is too long; rename it")
        path = folder / name
        _check_plain([path] if path.is_symlink() else [], ())
        for above in path.parents:
            if above == folder or above in checked:
                break
            if os.path.lexists(above) and (above.is_symlink() or not above.is_dir()):
                raise DataError(f"cannot write {path}: {above} is not a folder; {ELSEWHERE}")
            checked.add(above)


# The mark ---------------------------------------------------------------------------------------------------


def _read_mark(folder: Path) -> dict[str, Any]:
    file = folder / MARK
    try:
        if not os.path.lexists(file):
            return {"format": _FORMAT, "kind": None, "inputs": {}, "files": {}}
        _check_plain([file], ())
        mark: dict[str, Any] = read_json(file)
        if mark["format"] != _FORMAT or not all(isinstance(mark[name], dict) for name in ("inputs", "files")):
            raise ValueError(f"its format is not {_FORMAT}")
        return {**mark, "kind": mark["kind"]}
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror}; {ELSEWHERE}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}, vidssl's record of what it wrote there, is damaged: {error}; {ELSEWHERE}") from None


def _write_mark(folder: Path, mark: Mapping[str, Any]) -> None:
    if _read_mark(folder) != mark:
        write_json(folder / MARK, mark)


# Checks -----------------------------------------------------------------------------------------------------


def _check_is_folder(folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise DataError(f"cannot write to {folder}: it is a file; name a folder")


def _check_plain(paths: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Check that existing paths are no links and no inputs."""
    known = set[tuple[int, int]]()
    for source in filter(None, inputs):
        with suppress(OSError):
            status = source.stat()
            known.add((status.st_dev, status.st_ino))
    for path in paths:
        if path.is_symlink():
            raise DataError(f"{path} is a link, and nothing is written through links: {ELSEWHERE}")
        status = path.lstat()
        if (status.st_dev, status.st_ino) in known:
            raise DataError(f"{path} is an input, and an output could replace it: {ELSEWHERE}")


def check_writable(folder: Path) -> None:
    """Check that a folder can be written, or created where it is missing; nothing is created."""
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    with writing(folder):
        tempfile.TemporaryFile(prefix=f".{MARK}.", dir=existing).close()  # the name counts where no file can be unnamed


def _relative(path: Path, folder: Path) -> str:
    """A path from a folder, so that both may be moved together."""
    return os.path.relpath(os.path.realpath(path), os.path.realpath(folder))


# The lock ---------------------------------------------------------------------------------------------------


@contextmanager
def only_run_in(folder: Path, shared: bool = False) -> Iterator[None]:
    """Lock a folder, on the main process; a ConfigError if another run has locked it, or it cannot be written.

    With `shared` other runs may write to it at the same time if they share it too: they write other files.
    """
    with ExitStack() as stack:
        distributed.on_main(lambda: _lock(folder, stack, fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
        yield


def _lock_file(folder: Path, stack: ExitStack, kind: int) -> None:
    """Lock a folder by the file `.lock` in it; a BlockingIOError if another run has locked it."""
    # Not truncated, and not opened through a link: the name may be that of a file of the user.
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        reason = f"the file system of the output has no locks ({error.strerror})"
        log_once(_log, logging.WARNING, f"{reason}: see to it that no other run writes to the same folder")


def _lock(folder: Path, stack: ExitStack, kind: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The kernel releases the lock when all processes that have the descriptor have ended, even if they are killed.
        # Workers inherit it on purpose: until they have ended too, a new run would write to the same files.
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                _lock_file(folder, stack, kind)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    except BlockingIOError:
        raise ConfigError(f"another run is writing to {folder}: wait for it, or choose another output") from None
    except OSError as error:
        reason = "its .lock is a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"cannot write to output {folder}: {reason}; choose another output") from None
