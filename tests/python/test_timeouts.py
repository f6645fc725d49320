"""How long calls may take, from none to for ever, and how long the end of a client does."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any, Callable, Iterator

import numpy as np
import pytest

import blockd
from blockd import _aio_session, aio, session as session_module
from blockd._operations import release as _release
from support.fake_server import FakeServer, echo
from support.problems import solution, system

N, n = 3, 2
D, E = system(N, n)
ONES = np.ones(N * n)
X = solution(D, E, ONES)
LONG = [float("inf"), 1e9, 9e9, 9.3e9, 1e19, 1e300, 10**400, np.float64("inf"), np.float32(1e30), 9.9e8, 7]


@pytest.fixture(autouse=True)
def short_close(monkeypatch: Any) -> None:
    for module in (_release, _aio_session, aio, session_module):
        monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)


@pytest.mark.parametrize("timeout", LONG)
def test_a_long_timeout_is_none(server: blockd.LocalServer, timeout: Any) -> None:
    large: "dict[str, Any]" = {"stream_threshold_bytes": 16, "chunk_bytes": 16}
    cases: "list[tuple[dict[str, Any], Any]]" = [({"timeout": timeout}, None), ({}, timeout), ({"timeout": timeout, **large}, None)]
    for options, given in cases:
        with server.connect(**options) as client:
            A = client.factor(D, E, heal=True, timeout=given)
            np.testing.assert_allclose(A.solve(ONES, timeout=given), X)
            A.refactor(D, E, timeout=given)
            client.factor_solve(D, E, ONES, timeout=given)
            A.sample(timeout=given)
            client.smooth(F=1.0, Q=1.0, H=1.0, R=1.0, y=[1.0], keep=True, timeout=given)
            client.wait_until_serving(timeout)
            client.check_health()
            with client.session() as session:
                both = [session.send(A, ONES, timeout=given), session.send(A, ONES, timeout=60.0)]
                for one in both:
                    np.testing.assert_allclose(one.result(timeout), X)
                    assert one.exception(timeout) is None


@pytest.mark.parametrize("timeout", LONG)
def test_a_long_timeout_of_the_twin_is_none(server: blockd.LocalServer, timeout: Any) -> None:
    async def work() -> None:
        options: "list[tuple[dict[str, Any], Any]]" = [({"timeout": timeout}, None), ({}, timeout)]
        for given, each in options:
            async with blockd.aio.connect(server.target, **given) as client, client.session() as session:
                A = await client.factor(D, E, timeout=each)
                np.testing.assert_allclose(await A.solve(ONES, timeout=each), X)
                await client.wait_until_serving(timeout)
                both = [await session.send(A, ONES, timeout=each), await session.send(A, ONES, timeout=60.0)]
                for one in await asyncio.gather(*both):
                    np.testing.assert_allclose(one, X)

    asyncio.run(work())


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("-inf"), np.float64("nan")])
def test_what_is_no_timeout_is_refused(client: blockd.Client, timeout: Any) -> None:
    with client.factor(D, E) as A, client.session() as session:
        calls: "list[Callable[[], Any]]" = [
            lambda: blockd.connect(timeout=timeout), lambda: A.solve(ONES, timeout=timeout),
            lambda: client.factor(D, E, timeout=timeout), lambda: client.wait_until_serving(timeout),
            lambda: session.send(A, ONES, timeout=timeout)]
        for call in calls:
            with pytest.raises(blockd.InvalidArgument) as caught:
                call()
            assert caught.value.field == "timeout"
        np.testing.assert_allclose(session.send(A, ONES).result(), X)


class Stalled:
    """A server that answers a Factor, and nothing else before it ends."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def answer(self, method: str, request: Any, context: Any) -> Any:
        if method == "Factor":
            return echo(method, request, context)
        self.begun.set()
        self.may_end.wait(60)
        return iter(()) if method == "SolveStream" else b""


@pytest.fixture
def stalled() -> Iterator[FakeServer]:
    it = Stalled()
    with FakeServer(it.answer) as fake:
        begun = time.monotonic()
        yield fake
        assert time.monotonic() - begun < 40  # far less than the timeouts
        it.may_end.set()


@pytest.mark.parametrize("timeout", [600.0, float("inf")])
def test_a_server_that_stalls_does_not_hold_up_the_end(stalled: FakeServer, timeout: float) -> None:
    client = blockd.connect(stalled.target, timeout=timeout)
    A = client.factor(D, E)
    client.factor(D, E)
    gc.collect()
    session, late = client.session(), client.session()
    waits = late.send(A, ONES, timeout=0.2)
    cancelled = session.send(A, ONES)
    cancelled.cancel()
    late.close()
    with pytest.raises(blockd.DeadlineExceeded):
        waits.result()
    session.close(cancel=True)
    with pytest.raises(blockd.Cancelled):
        cancelled.result()
    client.close()


@pytest.mark.parametrize("timeout", [600.0, float("inf")])
def test_nor_that_of_the_twin(stalled: FakeServer, timeout: float) -> None:
    async def work() -> None:
        client = blockd.aio.connect(stalled.target, timeout=timeout)
        A = await client.factor(D, E)
        await client.factor(D, E)
        gc.collect()
        session, late = client.session(), client.session()
        waits = await late.send(A, ONES, timeout=0.2)
        await session.send(A, ONES)
        await late.close()
        with pytest.raises(blockd.DeadlineExceeded):
            await waits
        await session.close(cancel=True)
        await client.close()

    asyncio.run(work())


def test_a_session_waits_for_answers_up_to_the_timeout_of_its_client(stalled: FakeServer) -> None:
    with blockd.connect(stalled.target, timeout=0.5) as client:
        session = client.session()
        pending = session.send(client.factor(D, E), ONES)
        session.close()
        with pytest.raises(blockd.Cancelled):
            pending.result()
