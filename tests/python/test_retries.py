"""What is tried again, how often, and with which key and route."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import numpy as np
import pytest

import blockd
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import Failure, FakeServer, echo, factor_reply, retry_after
from support.problems import system

C = grpc.StatusCode
D, E = system(3, 2)
ONES = np.ones(6)


class Flaky:
    """Fails so many calls of each method, then goes on as `echo`."""

    def __init__(self, times: int, *failure: Any) -> None:
        self.left: "dict[str, int]" = {}
        self.times, self.failure = times, failure

    def __call__(self, method: str, request: Any, context: Any) -> bytes:
        self.left[method] = self.left.get(method, self.times) - 1
        if self.left[method] >= 0:
            raise Failure(*self.failure)
        return echo(method, request, context)


@pytest.mark.parametrize("failure", [
    (C.UNAVAILABLE, "full", retry_after(0.001)), (C.UNAVAILABLE, "gone"),
    (C.RESOURCE_EXHAUSTED, "busy", retry_after(0.001)),
    (C.RESOURCE_EXHAUSTED, "busy", pb.QuotaExceeded(quota="q", limit=2, asked=1),
     retry_after(0.001))])
@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_what_waiting_helps_is_tried_again(failure: Any, threshold: int) -> None:
    with FakeServer(Flaky(2, *failure)) as fake:
        with blockd.connect(fake.target, stream_threshold_bytes=threshold or 1 << 20) as client:
            client.factor(D, E).solve(ONES)
        with blockd.connect(fake.target, stream_threshold_bytes=threshold) as client:
            client.factor(D, E)
        assert fake.methods().count("Solve") == 3
        keys = {pb.FactorRequest.FromString(request).options.idempotency_key
                for method, request, _ in fake.calls if method == "Factor" and request}
        assert all(len(key) == 16 for key in keys)


def test_one_key_serves_all_attempts_of_a_factor() -> None:
    with FakeServer(Flaky(3, C.UNAVAILABLE, "full", retry_after(0.001))) as fake:
        with blockd.connect(fake.target) as client:
            client.factor(D, E)
            client.factor(D, E)
        keys = [pb.FactorRequest.FromString(request).options.idempotency_key
                for method, request, _ in fake.calls if method == "Factor"]
        assert len(keys) == 5 and len(set(keys)) == 2 and keys[:4] == [keys[0]] * 4


@pytest.mark.parametrize("failure", [
    (C.RESOURCE_EXHAUSTED, "never"), (C.INTERNAL, "broken"), (C.INVALID_ARGUMENT, "wrong"),
    (C.RESOURCE_EXHAUSTED, "never", pb.QuotaExceeded(quota="q", limit=1, asked=2),
     retry_after(0.001)),
    (C.RESOURCE_EXHAUSTED, "never", pb.InsufficientMemory(asked_bytes=2, total_bytes=1),
     retry_after(0.001)),
    (C.RESOURCE_EXHAUSTED, "never", pb.LimitExceeded(limit="l"), retry_after(0.001)),
    (C.NOT_FOUND, "gone", pb.HandleNotFound(reason=pb.HandleNotFound.EVICTED))])
def test_what_waiting_cannot_help_is_told_at_once(failure: Any) -> None:
    with FakeServer(Flaky(1, *failure)) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.BlockdError, match=failure[1]):
            client.factor(D, E)
        assert fake.methods() == ["Factor"]


def test_attempts_end() -> None:
    flaky = Flaky(100, C.UNAVAILABLE, "full", retry_after(0.001))
    with FakeServer(flaky) as fake:
        with blockd.connect(fake.target, retry=blockd.Retry(max_attempts=3)) as client:
            with pytest.raises(blockd.Unavailable) as caught:
                client.factor(D, E)
            assert caught.value.retry_after == 0.001
        assert fake.methods() == ["Factor"] * 3


def test_no_attempt_begins_that_the_timeout_would_end() -> None:
    flaky = Flaky(100, C.UNAVAILABLE, "full", retry_after(0.9))
    with FakeServer(flaky) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.Unavailable):
            client.factor(D, E, timeout=0.5)
        assert fake.methods() == ["Factor"]


def test_all_calls_together_have_a_budget() -> None:
    flaky = Flaky(1000, C.UNAVAILABLE, "full", retry_after(0.0001))
    retry = blockd.Retry(initial_delay=0.0001, budget_burst=3, budget_ratio=0.0)
    with FakeServer(flaky) as fake, blockd.connect(fake.target, retry=retry) as client:
        for _ in range(5):
            with pytest.raises(blockd.Unavailable):
                client.info()
        assert len(fake.calls) == 5 + 3


def test_a_timeout_holds_where_nobody_answers() -> None:
    release = threading.Event()

    def hang(*_: Any) -> bytes:
        release.wait(60)
        return b""

    with FakeServer(hang) as fake, blockd.connect(fake.target) as client:
        for threshold in (1 << 20, 1):
            with blockd.connect(fake.target, stream_threshold_bytes=threshold) as one:
                with pytest.raises(blockd.DeadlineExceeded):
                    one.factor(D, E, timeout=0.2)
        with pytest.raises(TimeoutError):
            client.factor(D, E, timeout=0.2)
        release.set()


@pytest.mark.parametrize("threshold", [1, 1 << 20])
def test_a_handle_goes_back_to_the_server_that_answered(threshold: int) -> None:
    def route(method: str, request: Any, context: Any) -> bytes:
        if method in ("Factor", "FactorStream"):
            context.send_initial_metadata((("blockd-route", "server-2"),))
        if method == "GetFactorization":
            return b""
        return echo(method, request, context)

    with FakeServer(route) as fake:
        with blockd.connect(fake.target, caller="me", stream_threshold_bytes=threshold) as client:
            with client.factor(D, E) as A:
                assert A.route == "server-2"
                A.info()
                A.refactor(D, E)
                if threshold > 1:
                    A.solve(ONES)
        routes = [metadata.get("blockd-route") for _, _, metadata in fake.calls]
        assert routes[0] is None and set(routes[1:]) == {"server-2"}
        assert {metadata["blockd-caller"] for _, _, metadata in fake.calls} == {"me"}
        assert fake.methods()[-1] == "Release"


@pytest.mark.parametrize("answer", [
    b"\xff\xff\xff", b"\x0a\x05abc", factor_reply(systems=2), b""])
def test_answers_that_make_no_sense_are_internal_errors(answer: bytes) -> None:
    with FakeServer(lambda *_: answer) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.InternalError):
            client.factor(D, E)


@pytest.mark.parametrize("solution", [b"", b"x" * 47, b"x" * 49, b"x" * 96])
def test_solutions_of_another_size_are_internal_errors(solution: bytes) -> None:
    def answer(method: str, request: Any, context: Any) -> bytes:
        if method == "Solve":
            return bytes(pb.SolveReply(solution=solution).SerializeToString())
        return echo(method, request, context)

    with FakeServer(answer) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.InternalError, match="a solution of"):
            client.factor(D, E).solve(ONES)


def test_a_token_stays_on_this_host_or_goes_over_tls() -> None:
    with FakeServer(echo) as fake:
        with blockd.connect(fake.target, token="secret") as client:
            client.factor(D, E)
        assert fake.calls[0][2]["authorization"] == "Bearer secret"
    for target in ("127.0.0.1:7117", "localhost:1", "[::1]:7117", "unix:/tmp/x", "dns:///localhost:1",
                   "127.9.9.9:1", "ipv4:127.0.0.1:1"):
        blockd.connect(target, token="secret").close()
    for target in ("example.org:7117", "10.0.0.1:1", "[::2]:1", "127.0.0.1.example.org:1", "localhost,evil:1",
                   "dns://evil/localhost", "ipv4:127.0.0.1:1,10.0.0.1:1", "", "127.0.0.1:1/x"):
        with pytest.raises(blockd.InvalidArgument):
            blockd.connect(target, token="secret")
    for token in ("", "with space", "new\nline", "ü"):
        with pytest.raises(blockd.InvalidArgument):
            blockd.connect("127.0.0.1:7117", token=token)
