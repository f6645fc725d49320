"""The examples end well, against this server and with one of their own, and so do the READMEs' snippets."""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

import blockd
import kalman
from problems import dense, system

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


def snippets(path: Path) -> "list[str]":
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_first_solve_of_the_top_readme(server: blockd.LocalServer, monkeypatch: Any) -> None:
    monkeypatch.setenv("BLOCKD_SERVER", server.target)
    (first,) = snippets(FOLDER.parents[2] / "README.md")
    told: dict[str, Any] = {}
    exec(first, told)
    np.testing.assert_allclose(dense(told["D"], told["E"]) @ told["x"], 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", range(len(snippets(FOLDER.parent / "README.md"))))
def test_snippets_of_the_tutorial(server: blockd.LocalServer, client: blockd.Client, monkeypatch: Any,
                                  k: int) -> None:
    snippet = snippets(FOLDER.parent / "README.md")[k]
    monkeypatch.setenv("BLOCKD_SERVER", server.target)
    if "tls=" in snippet:  # of a network that is not here
        compile(snippet, "README.md", "exec")
        return
    D, E = system(6, 4)
    told = {"blockd": blockd, "np": np, "scipy": scipy, "client": client, "D": D, "E": E, "D2": 2 * D, "E2": 2 * E,
            "b": np.ones(24), "sides": np.ones((5, 24)), "M": dense(D, E), "A": client.factor(D, E),
            "B": np.ones((2, 24)) / 5, "C": 9 * np.eye(2), **kalman.model(9, 3, 2), "y": kalman.series(9, 2)}
    if "async with" in snippet:
        exec("async def twin():\n" + textwrap.indent(snippet, "    "), told)
        asyncio.run(told["twin"]())
        return
    exec(snippet, told)
    if "found" in told:
        np.testing.assert_allclose(told["x"], np.linalg.solve(dense(D, E), np.ones(24)), atol=1e-12)
