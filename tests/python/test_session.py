"""Many solves in flight: each gets its own answer, its own error and its own end."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Iterator

import numpy as np
import pytest

import blockd
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import FakeServer, echo
from support.problems import solution, system

N, n = 5, 3
b = np.arange(N * n, dtype=float)


def test_solves_of_many_handles_keep_apart(client: blockd.Client) -> None:
    """Shapes, types, columns, batches and options mixed, from several threads."""
    rng = np.random.default_rng(0)
    handles = []
    for k in range(12):
        D, E = system(1 + k % 4, 1 + k % 3, k, (2,) if k % 5 == 4 else ())
        dtype = np.float32 if k % 6 == 5 else np.float64
        handles.append((D, E, client.factor(D.astype(dtype), E.astype(dtype), keep_matrix=True)))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        sent = []
        try:
            for _ in range(150):
                D, E, A = handles[rng.integers(len(handles))]
                shape = (*D.shape[:-2], D.shape[-1], rng.integers(1, 4))
                b = rng.standard_normal(shape)
                options: dict[str, Any] = {"residual": True} if rng.random() < 0.2 else {}
                if rng.random() < 0.2:
                    options["timeout"] = 60.0
                sent.append((D, E, A, b.copy(), session.send(A, b, **options)))
                b[...] = np.nan  # it was copied
            for D, E, A, b, pending in sent:
                x = pending.result(60)
                assert x.dtype == A.dtype
                near = 1e-4 if A.dtype == np.float32 else 1e-11
                many = D.ndim == 4
                for one in zip(*(a if many else a[np.newaxis] for a in (D, E, b, x))):
                    np.testing.assert_allclose(one[3], solution(*one[:3]), rtol=0, atol=near)
        except BaseException as error:
            failures.append(error)

    with client.session() as session:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in rng.integers(1 << 30, size=4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("chunk_bytes", [101, 50_001])
def test_large_solves_travel_in_chunks_between_small_ones(server: blockd.LocalServer,
                                                          chunk_bytes: int) -> None:
    D, E = system(N, n)
    rng = np.random.default_rng(1)
    with server.connect(chunk_bytes=chunk_bytes) as client:
        with client.factor(D, E) as A, client.session() as session:
            sent = []
            for d in [1, 300, 1, 400 * chunk_bytes // 1000, 2, 1, 40, 1]:  # at most 2.4 MB
                b = rng.standard_normal((N * n, d))
                sent.append((b, session.send(A, b)))
            for b, pending in sent:
                np.testing.assert_allclose(pending.result(60), solution(D, E, b), rtol=0, atol=1e-11)


def test_each_fails_by_itself(client: blockd.Client) -> None:
    D, E = system(N, n)
    A, B = client.factor(D, E), client.factor(D, E)
    twin = client.adopt(B.ids[0])
    B.release()
    b = np.ones((N, n))
    bad = b.copy()
    bad[1, 1] = np.nan
    with client.session() as session:
        with pytest.raises(blockd.HandleNotFound):
            session.send(B, b)
        with pytest.raises(blockd.InvalidArgument, match="b is of shape"):
            session.send(A, b[1:])
        with pytest.raises(blockd.InvalidArgument):
            session.send(A, b, timeout=0.0)
        sent = [session.send(one, what) for _ in range(50)
                for one, what in ((A, b), (twin, b), (A, bad))]
        for i, pending in enumerate(sent):
            if i % 3 == 0:
                np.testing.assert_allclose(pending.result(60), solution(D, E, b), atol=1e-12)
            else:
                error = pending.exception(60)
                kind = blockd.HandleNotFound if i % 3 == 1 else blockd.InvalidArgument
                assert isinstance(error, kind)


def test_results_come_to_whoever_waits(client: blockd.Client) -> None:
    """They are futures of the standard library."""
    D, E = system(N, n)
    with client.factor(D, E) as A, client.session() as session:
        sent = [session.send(A, np.ones(N * n)) for _ in range(20)]
        for pending in concurrent.futures.as_completed(sent, 60):
            assert pending.done() and not pending.cancel()
    with pytest.raises(ValueError, match="closed"):
        session.send(A, np.ones(N * n)) if not A.released else session.send(
            client.factor(D, E), np.ones(N * n))


def test_a_session_waits_at_its_end(client: blockd.Client) -> None:
    D, E = system(N, n)
    A = client.factor(D, E)
    with client.session(max_outstanding=3) as session:
        sent = [session.send(A, np.ones(N * n)) for _ in range(50)]
    assert all(pending.done() and pending.exception() is None for pending in sent)


def test_a_callback_may_send(client: blockd.Client) -> None:
    """Even where the session is full."""
    with client.factor(*system(N, n)) as A, client.session(max_outstanding=1) as session:
        sent = [session.send(A, b)]
        over = threading.Event()

        def more(_: Any) -> None:
            if len(sent) == 20:
                over.set()
                return
            sent.append(session.send(A, b))
            sent[-1].add_done_callback(more)

        sent[0].add_done_callback(more)
        assert over.wait(60)
        assert all(pending.exception(60) is None for pending in sent)


class Scripted:
    """A stream that answers only when it is told to, and notes what it gets."""

    def __init__(self) -> None:
        self.messages: "list[Any]" = []
        self.arrived = threading.Condition()
        self.answers: "list[bytes]" = []

    def __call__(self, method: str, request: Any, context: Any) -> Any:
        if method != "SolveStream":
            return echo(method, request, context)
        over = threading.Event()  # this stream
        threading.Thread(target=self._read, args=(request, over), daemon=True).start()
        return self._replies(over)

    def _read(self, requests: Any, over: threading.Event) -> None:
        try:
            for data in requests:
                with self.arrived:
                    self.messages.append(pb.SolveStreamRequest.FromString(data))
                    self.arrived.notify_all()
        except Exception:
            pass
        with self.arrived:
            over.set()
            self.arrived.notify_all()

    def _replies(self, over: threading.Event) -> Iterator[bytes]:
        while True:
            with self.arrived:
                self.arrived.wait_for(lambda: self.answers or over.is_set(), 60)
                if not self.answers:
                    return
                answer = self.answers.pop(0)
            if answer == b"break":
                raise RuntimeError("as told")
            yield answer

    def wait_for(self, count: int) -> "list[Any]":
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.messages) >= count, 60)
            return list(self.messages)

    def say(self, *answers: Any) -> None:
        with self.arrived:
            self.answers += [one if isinstance(one, bytes) else one.SerializeToString()
                             for one in answers]
            self.arrived.notify_all()


@pytest.fixture
def script() -> Iterator["tuple[Scripted, blockd.Client, blockd.Handle]"]:
    scripted = Scripted()
    with FakeServer(scripted) as fake, blockd.connect(fake.target) as client:
        yield scripted, client, client.factor(*system(N, n))


def test_a_timeout_goes_along_and_holds_here_too(script: Any) -> None:
    scripted, client, A = script
    with client.session() as session:
        pending = session.send(A, b, timeout=2)
        first = scripted.wait_for(1)[0]
        assert 0 < first.timeout.ToNanoseconds() <= 2_000_000_000
        with pytest.raises(TimeoutError):
            pending.result(0.01)
        assert not pending.done()
        with pytest.raises(blockd.DeadlineExceeded):
            pending.result()
        assert scripted.wait_for(2)[1].WhichOneof("part") == "cancel"
        session.close(cancel=True)


def test_a_session_does_not_wait_for_ever_at_its_end() -> None:
    scripted = Scripted()
    with FakeServer(scripted) as fake, blockd.connect(fake.target, timeout=0.5) as client:
        with client.session() as session:
            pending = session.send(client.factor(*system(N, n)), b)
        assert isinstance(pending.exception(0), blockd.BlockdError)


def test_cancel_takes_back_or_asks_the_server(script: Any) -> None:
    scripted, client, A = script
    with client.session() as session:
        pending = session.send(A, b)
        number = scripted.wait_for(1)[0].id
        assert pending.cancel()
        cancel = scripted.wait_for(2)[1]
        assert cancel.id == number and cancel.WhichOneof("part") == "cancel"
        scripted.say(pb.SolveStreamReply(id=number, status=pb.RpcStatus(code=1, message="as asked")))
        with pytest.raises(blockd.Cancelled, match="as asked"):
            pending.result(60)


def test_replace_last_goes_along(script: Any) -> None:
    scripted, client, A = script
    with client.session() as session:
        session.send(A, b)
        scripted.wait_for(1)
        session.send(A, b, replace_last=True)
        second = scripted.wait_for(2)[1]
        assert second.replace_last and second.WhichOneof("part") == "request"
        session.close(cancel=True)


def test_a_broken_stream_fails_what_is_unanswered_and_the_next_send_opens_another(
        script: Any) -> None:
    scripted, client, A = script
    session = client.session()
    with session._lock:  # in one message, so that none of them comes after the break
        sent = [session.send(A, b) for _ in range(3)]
    scripted.wait_for(1)
    scripted.say(b"break")
    for pending in sent:
        with pytest.raises(blockd.BlockdError):
            pending.result(60)
    seen = len(scripted.messages)
    pending = session.send(A, b)
    message = scripted.wait_for(seen + 1)[-1]
    scripted.say(pb.SolveStreamReply(id=message.id, reply=pb.SolveReply(solution=b.tobytes())))
    np.testing.assert_array_equal(pending.result(60), b)
    session.close(cancel=True)


@pytest.mark.parametrize("answer", [
    b"\xff\xff", pb.SolveStreamReply(id=77, reply=pb.SolveReply(solution=b.tobytes())),
    pb.SolveStreamReply(id=1, chunk=b"12345678"), pb.SolveStreamReply(id=1),
    pb.SolveStreamReply(id=1, reply=pb.SolveReply(solution=b.tobytes() + b"12345678")),
    pb.SolveStreamReply(id=1, many=pb.SolveManyReply(failure=[pb.SolveFailure(solve=9)]))])
def test_answers_that_make_no_sense_end_the_stream(script: Any, answer: Any) -> None:
    scripted, client, A = script
    session = client.session()
    pending = session.send(A, b)
    scripted.wait_for(1)
    scripted.say(answer)
    with pytest.raises(blockd.InternalError, match="the server sent"):
        pending.result(60)
    session.close(cancel=True)


def test_what_waits_goes_together(script: Any) -> None:
    scripted, client, A = script
    with client.session() as session:
        with session._lock:  # nothing is sent meanwhile
            sent = [session.send(A, k * b) for k in range(100)]
        frame = scripted.wait_for(1)[0]
        assert frame.many.handles == 100 * A.ids[0]
        scripted.say(pb.SolveStreamReply(id=frame.id, many=pb.SolveManyReply(
            solution=frame.many.rhs, failure=[pb.SolveFailure(solve=7, status=pb.RpcStatus(code=3))])))
        for k, pending in enumerate(sent):
            if k == 7:
                assert isinstance(pending.exception(60), blockd.InvalidArgument)
            else:
                np.testing.assert_array_equal(pending.result(60), k * b)
        with session._lock:
            for _ in range(2):
                session.send(A, b)
        again = scripted.wait_for(2)[1]
        assert again.many.handles == 2 * A.ids[0]
        session.close(cancel=True)
