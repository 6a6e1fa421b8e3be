"""Messages between processes: any picklable value through a Unix socket, large arrays without a copy.

A large value is pickled into an anonymous memory file, whose descriptor is sent: the sender never waits for the reader,
and /dev/shm (64 MB in containers) is not used. Small values are sent as bytes: the kernel limits the files in flight.
"""

import errno
import os
import pickle
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

from vidssl.errors import DataError

Message = bytes | tuple[IO[bytes], int]

# Start of the pickle in the memory file and size of the file; or the number of bytes that follow, and 0.
_HEADER = struct.Struct("<QQ")


@contextmanager
def file_limit_explained() -> Iterator[None]:
    """Turn the error for too many open files, or too many in flight between processes, into a DataError."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise DataError(
            f"worker processes cannot exchange more files ({error.strerror}): this process may have {limit} open, the "
            "user as many in flight; raise the limit (ulimit -n), or lower workers=N (of a run "
            "data.workers)"
        ) from None


@file_limit_explained()
def pack(value: object, inline: int) -> Message:
    """Pickle a value to bytes, or if that takes more than `inline` of them to a memory file."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if len(pickled) + sum(buffer.raw().nbytes for buffer in buffers) <= inline:
        return pickle.dumps(value, protocol=5) if buffers else pickled
    spans: list[tuple[int, int]] = []
    # Where there are no anonymous memory files, which are of Linux, it is a file without a name on the disk.
    file: IO[bytes] = open(os.memfd_create("vidssl"), "w+b") if hasattr(os, "memfd_create") else TemporaryFile()
    for buffer in buffers:
        file.seek(-(-file.tell() // 64) * 64)  # aligned for vector instructions
        spans.append((file.tell(), buffer.raw().nbytes))
        file.write(buffer.raw())
    start = file.tell()
    pickle.dump((pickled, spans), file, protocol=5)
    file.flush()
    return file, start


@file_limit_explained()
def send(end: socket.socket, message: Message) -> None:
    """Send a packed message."""
    if isinstance(message, bytes):
        end.sendall(_HEADER.pack(len(message), 0) + message)
        return
    with message[0] as file:
        socket.send_fds(end, [_HEADER.pack(message[1], file.tell())], [file.fileno()])


@file_limit_explained()
def receive(end: socket.socket) -> Any:
    """Receive a value; raises EOFError if the other end is closed."""
    header, files, _, _ = socket.recv_fds(end, _HEADER.size, 1)
    if not header:
        raise EOFError
    start, stop = _HEADER.unpack(header)
    if not stop:
        content = bytearray()
        while len(content) < start:
            part = end.recv(start - len(content))
            if not part:
                raise EOFError
            content += part
        return pickle.loads(content)
    if not files:  # the kernel drops a descriptor that exceeds the limit of this process
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        import torch  # not above: commands import this module before they parse their arguments

        # Unlike the mmap module torch keeps no descriptor open: a thousand results would exceed the limit.
        pages = torch.from_file(f"/dev/fd/{files[0]}", shared=True, size=stop, dtype=torch.uint8)
    except RuntimeError as error:  # one descriptor more for a moment
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
    finally:
        os.close(files[0])
    view = pages.numpy().data
    pickled, spans = pickle.loads(view[start:])
    return pickle.loads(pickled, buffers=[view[first : first + size] for first, size in spans])
