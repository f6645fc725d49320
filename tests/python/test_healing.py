"""A handle that heals does not notice that its server lost it; one that does not heal says why."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Iterator

import grpc
import numpy as np
import pytest

import blockd
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import Failure, FakeServer, echo
from support.problems import solution, system
from support.restartable import Restartable

N, n = 6, 4
D, E = system(N, n)
b = np.random.default_rng(2).standard_normal((N, n, 2))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Restartable]:
    with Restartable(tmp_path, "--device_memory=64MiB") as running:
        yield running


def evict_all(client: blockd.Client) -> None:
    """Fills the memory, so that whatever is idle must go."""
    large = client.plan(64, 128)
    count = int(1.2 * client.info().memory_bytes / large.factor_bytes)
    D, E = np.broadcast_to(4 * np.eye(128), (64, 128, 128)), np.zeros((63, 128, 128))
    filled = [client.factor(D, E) for _ in range(count)]
    for handle in filled:
        handle.release()


@pytest.mark.parametrize("kill", [False, True])
def test_without_healing_the_reason_is_told(server: Restartable, kill: bool) -> None:
    with server.connect() as client:
        A = client.factor(D, E)
        server.restart(kill)
        with pytest.raises(blockd.HandleNotFound) as caught:
            A.solve(b)
        assert caught.value.reason == "RESTARTED" and caught.value.server_name == "restartable"


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_is_not_noticed(server: Restartable, kill: bool) -> None:
    with server.connect() as client:
        diagonal = D.copy()
        A = client.factor(diagonal, E, heal=True)
        diagonal[...] = np.nan  # the handle has a copy
        for restores in (1, 2):
            server.restart(kill)
            np.testing.assert_allclose(A.solve(b), solution(D, E, b), rtol=0, atol=1e-12)
            assert A.restores == restores


def test_an_eviction_is_not_noticed(server: Restartable) -> None:
    with server.connect() as client:
        A, B = client.factor(D, E, heal=True), client.factor(D, E)
        evict_all(client)
        with pytest.raises(blockd.HandleNotFound) as caught:
            B.solve(b)
        assert caught.value.reason == "EVICTED"
        np.testing.assert_allclose(A.solve(b), solution(D, E, b), rtol=0, atol=1e-12)


def test_the_values_of_the_last_refactor_come_back(server: Restartable) -> None:
    with server.connect() as client:
        A = client.factor(D, E, heal=True)
        A.refactor(2 * D, 2 * E)
        server.restart()
        np.testing.assert_allclose(A.solve(b), solution(D, E, b) / 2, rtol=0, atol=1e-12)
        server.restart()
        A.refactor(4 * D, 4 * E)  # of what is gone
        np.testing.assert_allclose(A.solve(b), solution(D, E, b) / 4, rtol=0, atol=1e-12)


def test_a_function_may_bring_the_values(server: Restartable) -> None:
    scale = [1.0]
    with server.connect() as client:
        A = client.factor(D, E, heal=lambda: (scale[0] * D, scale[0] * E))
        scale[0] = 2.0
        server.restart()
        np.testing.assert_allclose(A.solve(b), solution(D, E, b) / 2, rtol=0, atol=1e-12)
        B = client.factor(D, E, heal=lambda: (D[1:], E[1:]))
        C = client.factor(D, E, heal=lambda: (1 / 0, E))
        server.restart()
        with pytest.raises(blockd.InvalidArgument, match="another shape"):
            B.solve(b)
        with pytest.raises(ZeroDivisionError):
            C.solve(b)


def test_batches_heal_as_one(server: Restartable) -> None:
    Ds, Es = system(N, n, batch=(3,))
    sides = np.random.default_rng(3).standard_normal((3, N, n))
    with server.connect() as client:
        A = client.factor(Ds, Es, heal=True)
        expected = A.solve(sides)
        server.restart()
        np.testing.assert_array_equal(A.solve(sides), expected)


def test_what_is_left_of_a_batch_heals(server: Restartable) -> None:
    Ds, Es = system(N, n, batch=(3,))
    Ds[1] = -Ds[1]
    sides = np.ones((3, N, n))
    with server.connect() as client:
        A = client.factor(Ds, Es, heal=True, partial=True)
        expected = A.solve(sides)
        server.restart()
        np.testing.assert_array_equal(A.solve(sides), expected)
        assert np.isnan(expected[1]).all() and np.isfinite(expected[[0, 2]]).all()


def test_a_server_may_be_waited_for(tmp_path: Path) -> None:
    with Restartable(tmp_path) as server, server.connect() as client:
        server.stop()
        with pytest.raises(blockd.Unavailable):
            client.wait_until_serving(0.2)
        starting = threading.Timer(0.3, server.start)
        starting.start()
        client.wait_until_serving(60.0)
        starting.join()
        client.info()


# gRPC looks by itself every 5 seconds, or with this setting never.
@pytest.mark.parametrize("what", ["client.info()", "session.send(A, b).result()", "client.factor(*large)"])
def test_a_server_that_came_back_is_found(tmp_path: Path, what: str) -> None:
    program = f"""
import sys, time
from pathlib import Path
import numpy as np
import blockd
from support.problems import system
from support.restartable import Restartable
D, E = system(6, 4)
large = system(400, 64)
b = np.ones(24)
with Restartable(Path(sys.argv[1])) as server, server.connect() as client, client.session() as session:
    A = client.factor(D, E, heal=True)
    {what}
    server.stop()
    try:
        {what}
    except blockd.Unavailable:
        server.start()
    for _ in range(100):
        try:
            {what}
            break
        except blockd.Unavailable:
            time.sleep(0.1)
    else:
        sys.exit("not found")
"""
    folder = Path(__file__).parent
    environment = dict(os.environ, GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS="0", PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment, timeout=300)


def test_all_that_wait_share_one_factor(server: Restartable) -> None:
    with server.connect() as client:
        A = client.factor(D, E, heal=True)
        server.restart()
        found: "list[Any]" = [None] * 8

        def work(k: int) -> None:
            found[k] = A.solve(b)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for x in found:
            np.testing.assert_allclose(x, solution(D, E, b), rtol=0, atol=1e-12)
        assert A.restores == 1 and len(client.list()) == 1


def test_sessions_heal(server: Restartable) -> None:
    with server.connect() as client, client.session() as session:
        A, B = client.factor(D, E, heal=True), client.factor(D, E)
        session.send(A, b).result(60)
        for _ in range(2):
            server.restart(kill=True)
            for pending in [session.send(A, b) for _ in range(30)]:
                np.testing.assert_allclose(pending.result(60), solution(D, E, b), rtol=0, atol=1e-12)
        with pytest.raises(blockd.BlockdError):
            session.send(B, b).result(60)


def test_large_solves_heal(server: Restartable) -> None:
    with server.connect(stream_threshold_bytes=64, chunk_bytes=100) as client:
        A = client.factor(D, E, heal=True)
        server.restart()
        np.testing.assert_allclose(A.solve(b), solution(D, E, b), rtol=0, atol=1e-12)


def test_a_released_handle_stays_so(server: Restartable) -> None:
    with server.connect() as client:
        A = client.factor(D, E, heal=True)
        A.release()
        with pytest.raises(blockd.HandleNotFound) as caught:
            A.solve(b)
        assert caught.value.reason == "RELEASED"
        assert client.list() == []


class Loses:
    """Every solve finds that the handle was evicted."""

    def __init__(self, reason: Any) -> None:
        self.reason = reason

    def __call__(self, method: str, request: Any, context: Any) -> bytes:
        if method == "Solve":
            raise Failure(grpc.StatusCode.NOT_FOUND, "lost", pb.HandleNotFound(reason=self.reason))
        return echo(method, request, context)


def test_healing_has_an_end() -> None:
    with FakeServer(Loses(pb.HandleNotFound.EVICTED)) as fake, blockd.connect(fake.target) as client:
        A = client.factor(D, E, heal=True)
        with pytest.raises(blockd.HandleNotFound, match="8 times within a minute"):
            A.solve(b)
        assert fake.methods().count("Factor") == 1 + 8


@pytest.mark.parametrize("reason", ["NEVER_EXISTED", "RELEASED", "FAILED_REFACTOR"])
def test_what_factoring_again_does_not_mend_is_told(reason: str) -> None:
    with FakeServer(Loses(pb.HandleNotFound.Reason.Value(reason))) as fake:
        with blockd.connect(fake.target) as client:
            A = client.factor(D, E, heal=True)
            with pytest.raises(blockd.HandleNotFound) as caught:
                A.solve(b)
            assert caught.value.reason == reason
            assert fake.methods().count("Factor") == 1


def test_a_restoration_that_takes_long_does_not_hold_its_callers() -> None:
    release = threading.Event()

    class Slow(Loses):
        def __call__(self, method: str, request: Any, context: Any) -> bytes:
            if method == "Factor" and "Factor" in fake.methods()[:-1]:
                release.wait(60)
            if method == "Solve" and release.is_set():
                return echo(method, request, context)
            return super().__call__(method, request, context)

    with FakeServer(Slow(pb.HandleNotFound.EXPIRED)) as fake, blockd.connect(fake.target) as client:
        A = client.factor(D, E, heal=True)
        with pytest.raises(blockd.DeadlineExceeded, match="factored again"):
            A.solve(b, timeout=2)
        release.set()
        np.testing.assert_array_equal(A.solve(b), b)  # by the one that went on
        assert fake.methods().count("Factor") == 2
