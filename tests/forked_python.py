"""A program that stands for `python` where a script starts several: it forks from a process that has the imports done.

Torch and vidssl take seconds to import. The program is a client: it hands its arguments, folder, environment and open
files to the server, which forks and runs them as `python SCRIPT …`, `python -m MODULE …` or `python -c CODE …` would.
It passes signals on, and ends with the status. Where the libraries that a process loads depend on its environment, or
where another vidssl than that of this checkout is meant, a real one is needed.
"""

import json
import multiprocessing.util
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
server.sendall(request)
answers = server.makefile()
process = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: os.kill(process, number))
status = int(answers.readline())
sys.exit(status if status >= 0 else 128 - status)
"""


def write_client(path: Path, address: Path) -> None:
    """Write the program."""
    path.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    path.chmod(0o755)


def serve(address: str) -> None:
    """Run what clients ask for, until this process is killed."""
    os.setsid()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that answer
    while True:
        client, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(client)
        client.close()


def _answer(client: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as stream:
        arguments, folder, environment = json.loads(stream.read(int.from_bytes(length, "big")))
    program = os.fork()
    if program == 0:
        client.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os._exit(_status_of(arguments))
    for file in files:
        os.close(file)
    client.sendall(f"{program}\n".encode())
    _, status = os.waitpid(program, 0)
    client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _status_of(arguments: list[str]) -> int:
    status: Any = 0
    try:
        _run(arguments)
    except SystemExit as end:
        status = 0 if end.code is None else end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    multiprocessing.util._exit_function()  # what `multiprocessing` does when a process ends: semaphores are removed
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _run(arguments: list[str]) -> None:
    kind, *rest = arguments if arguments[0] != "-u" else arguments[1:]
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if kind == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")
