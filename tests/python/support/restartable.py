"""A server that may go and come back at the same place."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import blockd


class Restartable:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.target = f"unix:{folder}/blockd.sock"
        self._ports = folder / "ports"
        self._arguments = [os.environ["BLOCKD_PROGRAM"], "--port=-1", "--metrics_port=-1",
                           f"--unix_socket={folder}/blockd.sock", f"--port_file={self._ports}",
                           "--server_name=restartable", "--drain_grace=0s", "--log_level=warn",
                           *arguments]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments)
        end = time.monotonic() + 60
        while not self._ports.exists():
            assert self._process.poll() is None and time.monotonic() < end
            time.sleep(0.01)

    def stop(self, kill: bool = False) -> None:
        (self._process.kill if kill else self._process.terminate)()
        self._process.wait(60)
        self._ports.unlink(missing_ok=True)

    def restart(self, kill: bool = False) -> None:
        self.stop(kill)
        self.start()

    def __enter__(self) -> "Restartable":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(kill=True)

    def connect(self, **options: Any) -> blockd.Client:
        return blockd.connect(self.target, **options)
