"""The examples end well, against this server and with one of their own."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import blockd

FOLDER = Path(__file__).resolve().parents[2] / "client" / "python" / "examples"


def test_there_are_four() -> None:
    assert len(list(FOLDER.glob("*.py"))) == 4


@pytest.mark.parametrize("example", sorted(path.name for path in FOLDER.glob("*.py")))
def test_example(example: str, server: blockd.LocalServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", [example, server.target])
    runpy.run_path(str(FOLDER / example), run_name="__main__")


def test_an_example_starts_its_own_server(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["mpc_loop.py"])
    runpy.run_path(str(FOLDER / "mpc_loop.py"), run_name="__main__")
