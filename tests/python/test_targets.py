"""What a target is, what lies on the way to it, and what a client says that cannot be used."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from typing import Any, Callable

import grpc
import pytest

import blockd
from blockd import _target
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import Failure, FakeServer, echo
from support.problems import system

D, E = system(3, 2)
ONES = [1.0] * 6
ONCE = blockd.Retry(max_attempts=1)
LONG = "x" * 108


@pytest.mark.parametrize("target, said", [
    ("127.0.0.1", "without a port"), ("localhost", "without a port"), ("solver", "without a port"),
    ("[::1]", "without a port"), ("solver:", "without a port"), ("dns:solver", "without a port"),
    ("dns:///solver", "without a port"), ("ipv4:127.0.0.1", "without a port"), (":99999", "without a host"),
    (":7117", "without a host"), ("solver:99999", "1 to 65535"), ("solver:0", "1 to 65535"),
    ("solver:-1", "1 to 65535"), ("solver:https", "1 to 65535"), ("solver:７１１７", "1 to 65535"),
    ("::1:7117", "brackets"), ("fe80::1:2", "brackets"), ("[solver]:7117", "no IPv6 address"),
    ("http://solver:7117", "http://"), ("https://solver:7117", "https://"), ("grpc://solver:7117", "grpc://"),
    ("solver:7117/", "malformed|1 to 65535"), ("user@solver:7117", "malformed"),
    ("solver:7117,other:7117", "malformed"), (" solver:7117", "space"), ("solver:7117\n", "space"),
    ("ipv4:solver:7117", "no address of its kind"), ("ipv6:127.0.0.1:7117", "no address of its kind"),
    ("ipv4:127.0.0.1:1,10.0.0.1", "without a port"), ("unix:", "without a path"),
    ("unix:///" + LONG, "109 bytes, and 107"), ("unix:" + LONG, "108 bytes, and 107"),
    ("unix-abstract:" + LONG, "108 bytes"), ("unix:/" + "ü" * 54, "109 bytes"), ("unix://host/path", "host"),
    ("unix:/a#b", "%23"), ("unix:/a?b", "%3F")])
def test_what_is_no_target_is_refused_and_told_what_one_is(target: str, said: str) -> None:
    async def aio() -> None:
        blockd.aio.connect(target)

    connects: "list[Callable[[], Any]]" = [lambda: blockd.connect(target), lambda: asyncio.run(aio())]
    for connect in connects:
        with pytest.raises(blockd.ConfigurationError, match=said) as caught:
            connect()
        assert caught.value.field == "target" and "host:port" in str(caught.value)
        assert isinstance(caught.value, blockd.InvalidArgument)
        assert type(pickle.loads(pickle.dumps(caught.value))) is blockd.ConfigurationError


def test_an_empty_one_is_refused_and_that_of_the_environment_too(monkeypatch: Any) -> None:
    with pytest.raises(blockd.ConfigurationError, match="target is empty"):
        blockd.connect("")
    monkeypatch.setenv("BLOCKD_SERVER", "solver")
    with pytest.raises(blockd.ConfigurationError, match="'solver', without a port"):
        blockd.connect()


@pytest.mark.parametrize("target", [
    "solver:7117", "solver.example.org.:1", "127.0.0.1:65535", "[::1]:7117", "[fe80::1%25lo]:7117", "dns:solver:7117",
    "dns:///solver:7117", "dns://8.8.8.8/solver:7117", "ipv4:127.0.0.1:1,10.0.0.1:2", "ipv6:[::1]:7117",
    "unix:relative", "unix:/run/blockd.sock", "unix:///run/blockd.sock", "unix:/with a space", "unix:" + LONG[1:],
    "unix:/%41" + LONG[3:], "unix-abstract:name", "vsock:2:7117", "sölver:7117"])
def test_what_is_a_target(target: str) -> None:
    blockd.connect(target).close()


def test_a_path_as_long_as_a_socket_can_have_is_dialled(tmp_path: Any) -> None:
    folder = tmp_path / ("y" * (107 - len(str(tmp_path)) - len("//s")))
    folder.mkdir()
    path = f"{folder}/s"
    assert len(path) == 107
    with FakeServer(echo, also=(f"unix:{path}",)), blockd.connect(f"unix:{path}") as client:
        client.factor(D, E)


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_proxy_is_between_this_host_and_itself(monkeypatch: Any, tmp_path: Any, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")

    async def aio(target: str) -> None:
        async with blockd.aio.connect(target, retry=ONCE) as client, client.session() as session:
            await (await session.send(await client.factor(D, E), ONES))

    unix = f"unix:{tmp_path}/socket"
    with FakeServer(served, also=(unix,)) as fake:
        targets = [f"127.0.0.1:{fake.port}", f"localhost:{fake.port}", f"LocalHost:{fake.port}", f"dns:///localhost:{fake.port}",
                   f"ipv4:127.0.0.1:{fake.port}", unix]
        for target in targets:
            with blockd.connect(target, retry=ONCE, stream_threshold_bytes=40) as client:
                A = client.factor(D, E)
                with client.session() as session:
                    session.send(A, ONES).result()
            asyncio.run(aio(target))


def served(method: str, request: Any, context: Any) -> Any:
    if method != "SolveStream":
        return echo(method, request, context)

    def replies() -> Any:
        for one in map(pb.SolveStreamRequest.FromString, request):
            reply = pb.SolveStreamReply(id=one.id, reply=pb.SolveReply(solution=one.request.rhs))
            yield reply.SerializeToString()

    return replies()


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_an_error_names_the_proxy_and_keeps_its_secret(monkeypatch: Any, variable: str) -> None:
    monkeypatch.setenv(variable, "http://mallory:secret@127.0.0.1:9")
    said = f"127.0.0.1:9 that ${variable} names"
    texts = []

    async def aio() -> None:
        async with blockd.aio.connect("solver.invalid:7117", retry=ONCE) as client:
            with pytest.raises(blockd.Unavailable) as caught:
                await client.info()
            texts.append(str(caught.value))
            async with blockd.aio.connect(fake.target) as near, client.session() as session:
                pending = await session.send(await near.factor(D, E), ONES)
                texts.append(str((await asyncio.gather(pending, return_exceptions=True))[0]))

    with FakeServer(echo) as fake, blockd.connect(fake.target) as near, blockd.connect("solver.invalid:7117", retry=ONCE) as client:
        calls: "list[Callable[[], Any]]" = [client.info, client.check_health, lambda: client.factor(D, E)]
        for call in calls:
            with pytest.raises(blockd.Unavailable) as caught:
                call()
            texts.append(str(caught.value))
        with client.session() as session:
            texts.append(str(session.send(near.factor(D, E), ONES).exception()))
        asyncio.run(aio())
    assert len(texts) == 6
    for text in texts:
        assert said in text and "mallory" not in text and "secret" not in text


def test_the_answer_of_a_server_says_nothing_of_a_proxy(monkeypatch: Any) -> None:
    def fail(*_: Any) -> Any:
        raise Failure(grpc.StatusCode.UNAVAILABLE, "busy")

    monkeypatch.setattr(blockd._calls, "proxy_note", lambda _: "(a proxy)")
    with FakeServer(fail) as fake, blockd.connect(fake.target, retry=ONCE) as client:
        with pytest.raises(blockd.Unavailable) as caught:
            client.info()
    assert "proxy" not in str(caught.value)


FAR = "solver.example.org:7117"
PROXY = "http://proxy:3128"


@pytest.mark.parametrize("target, environment, name", [
    (FAR, {}, None), (FAR, {"http_proxy": PROXY}, "http_proxy"),
    (FAR, {"http_proxy": PROXY, "https_proxy": "http://other:1"}, "https_proxy"),
    (FAR, {"http_proxy": PROXY, "https_proxy": PROXY, "grpc_proxy": "http://other:1"}, "grpc_proxy"),
    (FAR, {"http_proxy": PROXY, "grpc_proxy": ""}, None), (FAR, {"HTTP_PROXY": PROXY}, None),
    (FAR, {"http_proxy": "https://proxy:1"}, None), (FAR, {"http_proxy": "proxy:3128"}, None),
    (FAR, {"http_proxy": "http://a:b@c@proxy:1"}, None), (FAR, {"http_proxy": "http://[proxy"}, None),
    (FAR, {"http_proxy": PROXY, "no_proxy": "example.org"}, None),
    (FAR, {"http_proxy": PROXY, "no_proxy": "a,,org"}, None),
    (FAR, {"http_proxy": PROXY, "no_proxy": ",example.com,"}, "http_proxy"),
    (FAR, {"http_proxy": PROXY, "no_proxy": "example.org", "no_grpc_proxy": ""}, "http_proxy"),
    (FAR, {"http_proxy": PROXY, "no_proxy": "a", "no_grpc_proxy": "solver.example.org"}, None),
    (f"dns:///{FAR}", {"http_proxy": PROXY, "no_proxy": "example.org"}, None),
    ("10.0.0.1:1", {"http_proxy": PROXY}, "http_proxy"), ("127.9.9.9:1", {"http_proxy": PROXY}, None),
    ("[::1]:1", {"http_proxy": PROXY}, None), ("[::2]:1", {"http_proxy": PROXY, "no_proxy": "::2"}, None),
    ("unix:/run/x", {"http_proxy": PROXY}, None)])
def test_the_proxy_is_that_of_grpc(target: str, environment: Any, name: Any) -> None:
    note = _target.proxy_note(target, environment)
    assert note == "" if name is None else f"${name} names" in note


@pytest.mark.parametrize("target, entries, version, exempt", [
    (FAR, " example.org", (1, 51), False), (FAR, " example.org", (1, 85), True),
    (FAR, "Example.ORG", (1, 51), False), (FAR, "Example.ORG", (1, 85), True),
    ("10.1.2.3:1", "10.0.0.0/8", (1, 51), False), ("10.1.2.3:1", "10.0.0.0/8", (1, 85), True),
    ("11.1.2.3:1", "10.0.0.0/8,a/b", (1, 85), False), ("[fd00::1]:1", "fd00::/8", (1, 85), True)])
def test_later_versions_of_grpc_exempt_more(monkeypatch: Any, target: str, entries: str, version: Any,
                                            exempt: bool) -> None:
    monkeypatch.setattr(_target, "_version", lambda: version)
    assert (_target.proxy_note(target, {"http_proxy": PROXY, "no_proxy": entries}) == "") is exempt


def test_a_closed_client_says_so(server: blockd.LocalServer) -> None:
    client = server.connect()
    A, session = client.factor(D, E), client.session()
    session.close()
    with pytest.raises(blockd.ConfigurationError, match="session is closed"):
        session.send(A, ONES)
    client.close()
    calls: "list[Callable[[], Any]]" = [
        lambda: A.solve(ONES), client.info, lambda: client.factor(D, E), client.session, client.list, A.info,
        lambda: client.smooth(F=1.0, Q=1.0, H=1.0, R=1.0, y=[1.0], keep=True), client.check_health,
        lambda: client.adopt(b"x"), lambda: A.refactor(D, E)]
    for call in calls:
        with pytest.raises(blockd.ConfigurationError, match="client is closed"):
            call()
    with A:
        pass


def test_a_closed_twin_says_so(server: blockd.LocalServer) -> None:
    async def work() -> None:
        client = blockd.aio.connect(server.target)
        A, session = await client.factor(D, E), client.session()
        await session.close()
        with pytest.raises(blockd.ConfigurationError, match="session is closed"):
            await session.send(A, ONES)
        await client.close()
        calls: "list[Callable[[], Any]]" = [
            lambda: A.solve(ONES), client.info, lambda: client.factor(D, E), client.list, A.info,
            lambda: client.smooth(F=1.0, Q=1.0, H=1.0, R=1.0, y=[1.0], keep=True)]
        for call in calls:
            with pytest.raises(blockd.ConfigurationError, match="client is closed"):
                await call()
        with pytest.raises(blockd.ConfigurationError, match="client is closed"):
            client.session()
        await client.close()

    asyncio.run(work())


def test_a_call_under_way_says_that_the_client_was_closed() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def stall(*_: Any) -> bytes:
        begun.set()
        may_end.wait(60)
        return b""

    def close() -> None:
        begun.wait(60)
        client.close()

    async def work() -> None:
        client = blockd.aio.connect(fake.target)
        task = asyncio.ensure_future(client.info())
        while not begun.is_set():
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(blockd.ConfigurationError, match="client is closed"):
            await task

    with FakeServer(stall) as fake:
        client = blockd.connect(fake.target)
        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(blockd.ConfigurationError, match="client is closed"):
            client.info()
        closer.join()
        begun.clear()
        asyncio.run(work())
        may_end.set()


def test_a_client_of_a_loop_is_made_and_used_there(server: blockd.LocalServer) -> None:
    with pytest.raises(blockd.ConfigurationError, match="outside of an event loop"):
        blockd.aio.connect(server.target)

    async def make() -> Any:
        client = blockd.aio.connect(server.target)
        return client, await client.factor(D, E), client.session()

    async def use(client: Any, A: Any, session: Any) -> None:
        for call in (client.info, lambda: A.solve(ONES), lambda: session.send(A, ONES)):
            with pytest.raises(blockd.ConfigurationError, match="another event loop"):
                await call()
        with pytest.raises(blockd.ConfigurationError, match="another event loop"):
            client.session()

    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(make())
    asyncio.run(use(*made))
    loop.run_until_complete(made[2].close())
    loop.run_until_complete(made[0].close())
    loop.close()


@pytest.mark.parametrize("twin", [False, True])
def test_solves_that_nobody_reads_are_quiet(server: blockd.LocalServer, twin: bool) -> None:
    script = f"""
import asyncio, gc, numpy as np, blockd
D, E = np.tile(3 * np.eye(2), (3, 1, 1)), np.tile(-np.eye(2), (2, 1, 1))
async def work():
    async with blockd.aio.connect({server.target!r}) as client, client.session() as session:
        A = await client.factor(D, E)
        B = await client.adopt(A.ids[0])
        await A.release()
        for _ in range(3):
            await session.send(B, np.ones(6))
def blocking():
    with blockd.connect({server.target!r}) as client, client.session() as session:
        A = client.factor(D, E)
        B = client.adopt(A.ids[0])
        A.release()
        for _ in range(3):
            session.send(B, np.ones(6))
asyncio.run(work()) if {twin} else blocking()
gc.collect()
"""
    ended = subprocess.run([sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", script],
                           capture_output=True, text=True, timeout=120,
                           env={**os.environ, "GRPC_VERBOSITY": "NONE"})
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
