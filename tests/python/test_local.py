"""A server of one's own: private, there when it is said to be, and gone with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import blockd


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 60
    while not gone(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_serves_and_ends() -> None:
    with blockd.local_server() as server:
        folder = Path(server.log_file).parent
        assert folder.stat().st_mode & 0o077 == 0  # nobody else comes near the socket
        with server.connect() as client:
            client.check_health()
    assert gone(server.pid) and not folder.exists()
    server.stop()
    with pytest.raises(blockd.Unavailable), server.connect(
            timeout=5.0, retry=blockd.Retry(max_attempts=1)) as client:
        client.info()


def test_flags_reach_the_server() -> None:
    with blockd.local_server(None, "--max_systems=7") as server, server.connect() as client:
        assert client.info().limits["max_systems"] == "7"


@pytest.mark.parametrize("flag", ["--no_such_flag", "--device_memory=nonsense"])
def test_a_server_that_does_not_start_says_why(flag: str) -> None:
    with pytest.raises(blockd.Unavailable, match=flag.split("=")[0].strip("-")):
        blockd.local_server(None, flag)


def test_no_program(monkeypatch: Any) -> None:
    monkeypatch.delenv("BLOCKD_PROGRAM")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(FileNotFoundError, match="BLOCKD_PROGRAM"):
        blockd.local_server()


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)", "1 / 0"])
def test_ends_with_the_process_that_started_it(end: str) -> None:
    script = ("import blockd, os, sys\nserver = blockd.local_server()\n"
              f"print(server.pid, flush=True)\nsys.stdin.readline()\n{end}\n")
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ)
    assert child.stdin is not None and child.stdout is not None
    pid = int(child.stdout.readline())
    assert not gone(pid)
    child.stdin.close()
    child.wait(60)
    wait_until_gone(pid)
    child.stdout.close()
