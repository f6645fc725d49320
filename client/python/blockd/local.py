"""A server of one's own, for notebooks, tests and trying things out."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import weakref
from typing import Any, Optional, Sequence

import grpc

from blockd import errors
from blockd._calls import Unique
from blockd.client import Client, connect

# The server's process watches a pipe from this one: when that closes, however this process ends, it
# is told to stop. It has a process group of its own, so that Ctrl-C in a terminal does not reach it.
_WATCH = ('exec 3<&0; { read -r _ <&3; kill -TERM $$ 2>/dev/null; } & '
          'exec 3<&-; exec "$@" </dev/null')


class LocalServer(Unique):
    """A server process that ends with the `with`, with `stop`, or with this process."""

    _instead = "it owns a process. Share the object itself, or its target"

    def __init__(self, program: Optional[str], arguments: Sequence[str], start_timeout: float) -> None:
        found = program or os.environ.get("BLOCKD_PROGRAM") or shutil.which("blockd")
        if not found:
            raise FileNotFoundError("no program blockd on PATH; name it: local_server(program=...) "
                                    "or $BLOCKD_PROGRAM")
        self._folder = tempfile.mkdtemp(prefix="blockd-")  # for this user alone
        socket = os.path.join(self._folder, "blockd.sock")
        self._serving_file = os.path.join(self._folder, "ports")  # is there once it serves
        self.log_file = os.path.join(self._folder, "log")
        #: For `connect`: a Unix socket that nobody else can reach.
        self.target = f"unix:{socket}"
        with open(self.log_file, "wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "sh", found, "--port=-1", f"--unix_socket={socket}",
                 f"--port_file={self._serving_file}", "--metrics_port=-1", "--drain_grace=0s", "--log_level=warn", *arguments],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True)
        self._end = weakref.finalize(self, _end, self._process, self._folder)
        try:
            self._wait_until_serving(time.monotonic() + start_timeout)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, **options: Any) -> Client:
        """A client of it; the options are those of `blockd.connect`."""
        return connect(self.target, **options)

    def stop(self) -> None:
        """Ends it, after what it has accepted. May be called again."""
        self._end()

    def __enter__(self) -> "LocalServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_serving(self, deadline: float) -> None:
        while not os.path.exists(self._serving_file):
            if self._process.poll() is not None or time.monotonic() > deadline:
                with open(self.log_file, errors="replace") as log:
                    said = log.read()[-2000:].strip()
                raise errors.make(grpc.StatusCode.UNAVAILABLE,
                                  f"the server did not start: {said or 'no word of it'}")
            time.sleep(0.01)
        with self.connect(timeout=max(0.1, deadline - time.monotonic())) as client:
            client.check_health()


def _end(process: "subprocess.Popen[bytes]", folder: str) -> None:
    assert process.stdin is not None
    process.stdin.close()  # SIGTERM
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def local_server(program: Optional[str] = None, *arguments: str,
                 start_timeout: float = 30.0) -> LocalServer:
    """Starts a server for this process and waits until it serves.

        with blockd.local_server() as server, server.connect() as client:
            ...

    Args:
        program: path of `blockd`; default $BLOCKD_PROGRAM, else the one on PATH.
        arguments: more flags of it, as "--device_memory=1GiB"; `blockd --help` lists them.
        start_timeout: seconds.

    Raises:
        FileNotFoundError: there is no such program.
        Unavailable: it did not start; the message has the end of its log.
    """
    return LocalServer(program, arguments, start_timeout)
