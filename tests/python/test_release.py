"""What Python forgets is given back: while the client lives, when it is closed, and when Python ends."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import Any, Callable

import grpc
import pytest

import blockd
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import FakeServer, echo, factor_reply
from support.problems import system

D, E = system(3, 2)
ONES = [1.0] * 6
MAKE = {"sync": "client = blockd.connect({target!r}, caller={caller!r})\nA = client.factor(D, E)\n",
        "aio": ("async def work():\n"
                "    global client, A\n"
                "    client = blockd.aio.connect({target!r}, caller={caller!r})\n"
                "    A = await client.factor(D, E)\n"
                "asyncio.run(work())\n")}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def run(script: str) -> "subprocess.CompletedProcess[str]":
    head = ("import asyncio, os, sys, numpy as np, blockd\n"
            "D, E = np.tile(3 * np.eye(2), (3, 1, 1)), np.tile(-np.eye(2), (2, 1, 1))\n")
    return subprocess.run([sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", head + script],
                          capture_output=True, text=True, timeout=120, env={**os.environ, "GRPC_VERBOSITY": "NONE"})


@pytest.mark.parametrize("closes", [False, True])
def test_all_that_many_threads_forget(server: blockd.LocalServer, closes: bool) -> None:
    def work() -> None:
        for _ in range(20):
            client.factor(D, E)

    with server.connect(caller="threads") as client, server.connect(caller="threads") as other:
        threads = [threading.Thread(target=work) for _ in range(16)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        gc.collect()
        if closes:
            client.close()
            assert other.list() == []
        else:  # with no further call
            until(lambda: other.list() == [])


def test_what_is_left_when_a_client_is_closed_or_forgotten(server: blockd.LocalServer) -> None:
    with server.connect(caller="left") as other:
        client = server.connect(caller="left")
        held = [client.factor(D, E) for _ in range(3)]
        client.close()
        assert other.list() == [] and all(one.released for one in held)
        client.close()
        client = server.connect(caller="left")
        held = [client.factor(D, E) for _ in range(3)]
        circle: "list[Any]" = [client, held]
        circle.append(circle)
        del client, held, circle
        gc.collect()
        until(lambda: other.list() == [])


def test_what_is_factored_while_the_client_is_closed(server: blockd.LocalServer) -> None:
    begun = threading.Barrier(9)

    def work() -> None:
        begun.wait()
        with pytest.raises(blockd.ConfigurationError, match="closed"):
            while True:
                client.factor(D, E)

    client = server.connect(caller="closing")
    threads = [threading.Thread(target=work) for _ in range(8)]
    for one in threads:
        one.start()
    begun.wait()
    client.close()
    for one in threads:
        one.join()


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("end", ["", "1 / 0", "client.cycle = A, client; client = A = None"])
def test_a_script_leaves_nothing(server: blockd.LocalServer, kind: str, end: str) -> None:
    caller = f"script-{kind}-{end}"
    ended = run(MAKE[kind].format(target=server.target, caller=caller) + end)
    assert "ZeroDivisionError" in ended.stderr if end == "1 / 0" else not ended.stderr, ended.stderr
    with server.connect(caller=caller) as other:
        assert other.list() == []


def test_a_script_with_a_server_of_its_own_releases_before_that_ends() -> None:
    ended = run("import weakref\nserver = blockd.local_server()\nother = server.connect()\n"
                "weakref.finalize(server, lambda: print(other.list()))\n"  # between the client's end and the server's
                "client = server.connect()\nA = client.factor(D, E)\nassert len(other.list()) == 1\n")
    assert ended.stdout == "[]\n" and not ended.stderr, ended


def test_what_a_fork_forgets_stays(server: blockd.LocalServer) -> None:
    ended = run(MAKE["sync"].format(target=server.target, caller="fork") +
                "if os.fork() == 0:\n    del A\n    sys.exit(0)\nos.wait()\n"
                "print(len(client.list()))\n")
    assert ended.stdout == "1\n", ended
    with server.connect(caller="fork") as other:
        assert other.list() == []


def test_a_detached_one_stays_and_may_be_adopted(server: blockd.LocalServer) -> None:
    with server.connect(caller="detached") as client:
        A = client.factor(D, E)
        ids = A.detach()
        assert A.released and len(ids) == 1
        del A
        gc.collect()
    with server.connect(caller="detached") as client:
        assert [one.handle for one in client.list()] == list(ids)
        with client.adopt(ids[0]):
            pass
        assert client.list() == []


def test_of_two_handles_of_one_name_the_last_one_releases(server: blockd.LocalServer) -> None:
    with server.connect(caller="two") as client, server.connect(caller="two") as other:
        A = client.factor(D, E)
        client.adopt(A.ids[0])
        client.factor(D, E)
        gc.collect()
        until(lambda: [one.handle for one in other.list()] == list(A.ids))
        del A
        until(lambda: other.list() == [])


def test_a_handle_stays_while_a_session_solves_with_it(server: blockd.LocalServer) -> None:
    async def work() -> None:
        async with blockd.aio.connect(server.target, caller="solving") as client, client.session() as session:
            sent = [await session.send(await client.factor(D, E), ONES) for _ in range(50)]
            await asyncio.gather(*sent)
            gc.collect()
            while await client.list():
                await asyncio.sleep(0.01)

    with server.connect(caller="solving") as client:
        with client.session() as session:
            sent = [session.send(client.factor(D, E), ONES) for _ in range(50)]
            for one in sent:
                one.result()
            until(lambda: client.list() == [])
        asyncio.run(work())


def test_a_release_that_is_refused_is_tried_again() -> None:
    refused = threading.Event()

    def answer(method: str, request: Any, context: Any) -> bytes:
        if method == "Release" and not refused.is_set():
            refused.set()
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return echo(method, request, context)

    with FakeServer(answer) as fake, blockd.connect(fake.target) as client:
        client.factor(D, E)
        until(lambda: fake.methods().count("Release") == 2)


def test_those_of_a_route_go_in_one_call() -> None:
    may_end = threading.Event()
    numbers = iter(range(100))

    def answer(method: str, request: Any, context: Any) -> bytes:
        if method == "Factor":
            return factor_reply(b"%24d" % next(numbers))
        may_end.wait(60)
        return b""

    with FakeServer(answer) as fake, blockd.connect(fake.target) as client:
        for _ in range(50):
            client.factor(D, E)
        may_end.set()
        client.close()
    released = [pb.ReleaseRequest.FromString(one).handle for name, one, _ in fake.calls if name == "Release"]
    assert sorted(name for one in released for name in one) == [b"%24d" % k for k in range(50)]
    assert len(released) < 10


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_is_one_of_a_kind_is_not_copied(server: blockd.LocalServer, client: blockd.Client, make: Any) -> None:
    A = client.factor(D, E)
    with pytest.raises(TypeError, match="Handle is not copied or pickled.*adopt"):
        make(A)
    with client.session() as session:
        pending = session.send(A, ONES)
        for one in (client, session, pending, server):
            with pytest.raises(TypeError, match=f"{type(one).__name__} is not copied or pickled: "):
                make(one)
    gc.collect()
    A.solve(ONES)

    async def work() -> None:
        async with blockd.aio.connect(server.target) as client, client.session() as session:
            for one in (client, session, await client.factor(D, E)):
                with pytest.raises(TypeError, match=f"{type(one).__name__} is not copied or pickled: "):
                    make(one)

    asyncio.run(work())
