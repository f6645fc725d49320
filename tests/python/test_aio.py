"""The coroutines do as the blocking calls: the same operations, run in an event loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockd
from support.problems import dense, solution, system
from support.restartable import Restartable

N, n = 6, 4
D, E = system(N, n)
b = np.random.default_rng(2).standard_normal((N, n, 2))


def test_every_call_has_its_twin() -> None:
    for ours, theirs in ((blockd.Client, blockd.aio.AsyncClient), (blockd.Handle, blockd.aio.AsyncHandle),
                         (blockd.Session, blockd.aio.AsyncSession)):
        for name, method in inspect.getmembers(ours, inspect.isfunction):
            if name.startswith("_") or name == "linear_operator":
                continue
            twin = getattr(theirs, name)
            assert list(inspect.signature(method).parameters.values()) == [
                one.replace(annotation=method.__annotations__.get(one.name, one.annotation))
                for one in inspect.signature(twin).parameters.values()], name
    assert inspect.signature(blockd.connect).parameters == inspect.signature(blockd.aio.connect).parameters


@pytest.mark.parametrize("large", [False, True])
def test_every_call(server: blockd.LocalServer, large: bool) -> None:
    async def work() -> None:
        sizes: dict[str, Any] = {"stream_threshold_bytes": 64, "chunk_bytes": 100} if large else {}
        async with blockd.aio.connect(server.target, caller="aio", **sizes) as client:
            async with await client.factor(D, E, logdet=True, keep_matrix=True) as A:
                np.testing.assert_allclose(await A.solve(b), solution(D, E, b), rtol=0, atol=1e-12)
                assert A.logdet == pytest.approx(np.linalg.slogdet(dense(D, E))[1], rel=1e-12)
                found = await A.solve_with_info(b, residual=True)
                assert found.backward_error is not None and found.backward_error < 1e-14
                await A.refactor(2 * D, 2 * E)
                np.testing.assert_allclose(await A.solve(b), solution(D, E, b) / 2, rtol=0, atol=1e-12)
                assert (await A.info()).times_refactored == 1
                assert [one.handle for one in await client.list()] == list(A.ids)
                twin = await client.adopt(A.ids[0])
                assert await twin.release() > 0
            assert await client.list() == []
            found = await client.factor_solve(D, E, b)
            np.testing.assert_allclose(found.x, solution(D, E, b), rtol=0, atol=1e-12)
            assert (await client.plan(32, 8)).factor_bytes > 0
            assert (await client.info()).version
            await client.check_health()
            with pytest.raises(blockd.NotPositiveDefinite):
                await client.factor(-D, E)
            with pytest.raises(TimeoutError):
                await client.factor(D, E, timeout=1e-6)
            Ds, Es = system(N, n, batch=(3,))
            async with await client.factor(Ds, Es) as A:
                sides = np.ones((3, N * n))
                x = await A.solve(sides)
                for k in range(3):
                    np.testing.assert_allclose(x[k], solution(Ds[k], Es[k], sides[k]), rtol=0, atol=1e-12)

    asyncio.run(work())


def test_many_at_once(server: blockd.LocalServer) -> None:
    async def work() -> None:
        async with blockd.aio.connect(server.target) as client:
            async with await client.factor(D, E) as A:
                sides = [np.random.default_rng(k).standard_normal((N, n)) for k in range(100)]
                together = await asyncio.gather(*map(A.solve, sides))
                async with client.session(max_outstanding=7) as session:
                    sent = [await session.send(A, one) for one in sides]
                    piped = await asyncio.gather(*sent)
                for one, x, y in zip(sides, together, piped):
                    np.testing.assert_allclose(x, solution(D, E, one), rtol=0, atol=1e-12)
                    np.testing.assert_allclose(y, x, rtol=0, atol=1e-14)
                with pytest.raises(ValueError, match="closed"):
                    await session.send(A, sides[0])

    asyncio.run(work())


def test_sessions_fail_one_by_one_and_can_be_cancelled(server: blockd.LocalServer) -> None:
    async def work() -> None:
        async with blockd.aio.connect(server.target) as client, client.session() as session:
            A, B = await client.factor(D, E), await client.factor(D, E)
            twin = await client.adopt(B.ids[0])
            await B.release()
            good, lost = await session.send(A, b), await session.send(twin, b)
            with pytest.raises(blockd.HandleNotFound):
                await lost
            np.testing.assert_allclose(await good, solution(D, E, b), rtol=0, atol=1e-12)
            waits = await session.send(A, b)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            late = await session.send(A, b, timeout=1e-6)
            with pytest.raises(blockd.DeadlineExceeded):
                await late
            with pytest.raises(blockd.InvalidArgument):
                await session.send(A, b[1:])
            np.testing.assert_allclose(await (await session.send(A, b)), solution(D, E, b), atol=1e-12)

    asyncio.run(work())


def test_a_cancelled_call_leaves_the_client_whole(server: blockd.LocalServer) -> None:
    async def work() -> None:
        async with blockd.aio.connect(server.target) as client:
            async with await client.factor(D, E) as A:
                for _ in range(20):
                    task = asyncio.ensure_future(A.solve(b))
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                np.testing.assert_allclose(await A.solve(b), solution(D, E, b), rtol=0, atol=1e-12)

    asyncio.run(work())


def test_forgotten_handles_are_given_back(server: blockd.LocalServer) -> None:
    async def work() -> None:
        async with blockd.aio.connect(server.target, caller="forgetful") as client:
            await client.factor(D, E)
            gc.collect()
        async with blockd.aio.connect(server.target, caller="forgetful") as client:
            assert await client.list() == []

    asyncio.run(work())


def test_handles_heal(tmp_path: Path) -> None:
    async def work(server: Restartable) -> None:
        async with blockd.aio.connect(server.target) as client, client.session() as session:
            A = await client.factor(D, E, heal=True)
            B = await client.factor(D, E)
            await (await session.send(A, b))
            for call in (called, piped):
                server.restart(kill=True)
                for x in await asyncio.gather(*(call(session, A) for _ in range(5))):
                    np.testing.assert_allclose(x, solution(D, E, b), rtol=0, atol=1e-12)
            assert A.restores == 2 and len(await client.list()) == 1
            with pytest.raises(blockd.HandleNotFound) as caught:
                await B.solve(b)
            assert caught.value.reason == "RESTARTED"

    async def called(_: Any, A: Any) -> Any:
        return await A.solve(b)

    async def piped(session: Any, A: Any) -> Any:
        return await (await session.send(A, b))

    with Restartable(tmp_path) as server:
        asyncio.run(work(server))
