"""A server for the tests: $BLOCKD_PROGRAM, or blockd on PATH."""

from __future__ import annotations

from typing import Iterator

import pytest

import blockd


@pytest.fixture(scope="session")
def server() -> Iterator[blockd.LocalServer]:
    with blockd.local_server(None, "--device_memory=1GiB") as running:
        yield running


@pytest.fixture
def client(server: blockd.LocalServer) -> Iterator[blockd.Client]:
    with server.connect() as connected:
        yield connected


@pytest.fixture
def chunky(server: blockd.LocalServer) -> Iterator[blockd.Client]:
    """To which almost everything is large: it travels in chunks that cut across blocks and rows."""
    with server.connect(stream_threshold_bytes=64, chunk_bytes=100) as connected:
        yield connected
