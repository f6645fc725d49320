"""Answers that come as a head and chunks: what is asked on the wire, and replies that lie."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Iterator

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

import blockd
from support import kalman
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import Failure, FakeServer, echo
from support.problems import system

T, K, nx, ny = 5, 3, 3, 2
N, n = 4, 3
MODEL = kalman.model(T, nx, ny, each=True)
SERIES = np.array([kalman.series(T, ny, 0.2, seed) for seed in range(K)])
ONCE: "dict[str, Any]" = {"retry": blockd.Retry(max_attempts=1)}

Change = Callable[[Any], Any]
Replies = Callable[["list[bytes]"], Iterator[bytes]]


def in_order(replies: "list[bytes]") -> Iterator[bytes]:
    yield from replies


def change_nothing(head: Any) -> None:
    pass


class Fake:
    """Answers every question rightly, but for `change` of the head and `order` of the replies."""

    def __init__(self, change: Change = change_nothing, order: Replies = in_order) -> None:
        self.change, self.order = change, order
        self.header: Any = None
        self.sent = b""

    def __call__(self, method: str, request: Any, context: Any) -> Any:
        if method == "Smooth":
            messages = [pb.SmoothRequest.FromString(one) for one in request]
            self.header, self.sent = messages[0].header, b"".join(one.chunk for one in messages[1:])
            return self._replies(pb.SmoothReply, *smooth(self.header, self.sent))
        if method == "SelectedInverse":
            asked = pb.SelectedInverseRequest.FromString(request)
            blocks = asked.num_blocks
            data = np.arange(float(blocks * n * n)), np.arange(float((blocks - 1) * n * n))
            return self._replies(pb.SelectedInverseReply, pb.SelectedInverseHead(
                num_blocks=blocks, block_size=n, scalar=pb.FLOAT64, diagonal_bytes=data[0].nbytes,
                coupling_bytes=data[1].nbytes), b"".join(one.tobytes() for one in data))
        if method == "Sample":
            drawn = pb.SampleRequest.FromString(request)
            samples = np.arange(float(drawn.num_samples * N * n)) + drawn.first_sample
            return self._replies(pb.SampleReply, pb.SampleHead(
                num_samples=drawn.num_samples, num_rows=N * n, scalar=pb.FLOAT64,
                samples_bytes=samples.nbytes), samples.tobytes())
        return echo(method, request, context)

    def _replies(self, kind: Any, head: Any, data: bytes) -> Iterator[bytes]:
        self.change(head)
        chunks = [kind(chunk=data[i:i + 50]).SerializeToString() for i in range(0, len(data), 50)]
        return self.order([kind(head=head).SerializeToString(), *chunks])


def smooth(header: Any, sent: bytes) -> "tuple[Any, bytes]":
    """By the dense precision matrix, from the bytes of the wire, with everything there is."""
    steps, series = header.num_steps, header.num_series
    values, at = np.frombuffer(sent, "<f8"), 0

    def take(form: int, count: int, *shape: int) -> Any:
        nonlocal at
        lead = (count,) if form == pb.PER_STEP else ()
        size = int(np.prod((*lead, *shape)))
        at += size
        return values[at - size:at].reshape((*lead, *shape[::-1])).swapaxes(-1, -2 if len(shape) > 1 else -1)

    sizes = header.state_size, header.observation_size
    given = {"F": take(header.transition, steps - 1, sizes[0], sizes[0]),
             "Q": take(header.transition_covariance, steps - 1, sizes[0], sizes[0]),
             "H": take(header.observation, steps, sizes[1], sizes[0]),
             "R": take(header.observation_covariance, steps, sizes[1], sizes[1])}
    if header.transition_offset:
        given["c"] = take(header.transition_offset, steps - 1, sizes[0])
    if header.observation_offset:
        given["d"] = take(header.observation_offset, steps, sizes[1])
    if not header.diffuse:
        given["m0"], given["P0"] = take(0, 1, sizes[0]), take(0, 1, sizes[0], sizes[0])
        take(0, 1, header.diffuse_columns, sizes[0])
    y = take(0, 1, sizes[1] * steps * series).reshape(series, steps, sizes[1])
    assert at == len(values)
    found = [kalman.by_precision(one, **given) for one in y]
    parts = [np.array([one.means for one in found]), np.array([one.covariances for one in found]),
             np.array([one.lag_one for one in found]).swapaxes(-1, -2),
             np.array([kalman.residuals(one, of, **given) for one, of in zip(y, found)])]
    head = pb.SmoothHead(
        num_systems=series, system_of_series=range(series), growth=1,
        handle=[b"%24d" % k for k in range(series)] if header.options.keep else [],
        log_likelihood=[one.log_likelihood for one in found], observed=np.isfinite(y).sum((1, 2)),
        means_bytes=parts[0].nbytes, covariances_bytes=parts[1].nbytes, lag_one_bytes=parts[2].nbytes,
        residuals_bytes=parts[3].nbytes, system=[pb.SmoothedSystem(form=pb.INFORMATION)] * series)
    return head, b"".join(np.ascontiguousarray(one).tobytes() for one in parts)


def ask(client: blockd.Client, **options: Any) -> Any:
    return client.smooth(**MODEL, y=SERIES, lag_one=True, residuals=True, **options)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("steps", [1, 2, T])
def test_a_model_and_its_answer_keep_their_order(chunk_bytes: int, each: bool, steps: int) -> None:
    given, y = kalman.model(steps, nx, ny, each=each), kalman.series(steps, ny, 0.2)
    with FakeServer(Fake()) as fake, blockd.connect(fake.target, chunk_bytes=chunk_bytes) as client:
        found = client.smooth(**given, y=y, lag_one=True, residuals=True)
    expected = kalman.by_precision(y, **given)
    np.testing.assert_allclose(found.means, expected.means, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.covariances, expected.covariances, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.lag_one_covariances, expected.lag_one, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.standardized_residuals, kalman.residuals(y, expected, **given), atol=1e-10)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood)


def test_options_of_a_smooth() -> None:
    answers = Fake()
    with FakeServer(answers) as fake, blockd.connect(fake.target, **ONCE) as client:
        ask(client, keep=True, lease=1.5, priority="bulk", seed=2**64 - 1, form="double-double")
    assert answers.header.options == pb.SmoothOptions(
        covariances=pb.COVARIANCES, lag_one_covariances=True, log_likelihood=True, residuals=True,
        seed=2**64 - 1, keep=True, lease=Duration(seconds=1, nanos=500_000_000), priority=pb.BULK,
        form=pb.ORTHOGONAL_IN_DOUBLE_DOUBLE)
    assert not answers.header.diffuse and answers.header.num_series == K


def test_large_parts_travel_in_chunks_of_one_size() -> None:
    sizes: list[int] = []

    def count(method: str, request: Any, context: Any) -> Any:
        for one in request:
            sizes.append(len(pb.SmoothRequest.FromString(one).chunk))
        raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "enough")

    with FakeServer(count) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.InvalidArgument, match="enough"):
            client.smooth(F=np.eye(4), Q=np.eye(4), H=np.eye(2, 4), R=np.eye(2), y=np.zeros((3, 100_000, 2)))
    assert sum(sizes) == 8 * (16 + 16 + 8 + 4 + 600_000) and max(sizes) <= 1 << 20 and len(sizes) < 12


def sized(name: str, by: int) -> Change:
    def change(head: Any) -> None:
        setattr(head, name, getattr(head, name) + by)
    return change


def cleared(name: str) -> Change:
    return lambda head: head.ClearField(name)


SMOOTH_LIES: "list[Change]" = [
    *(sized(name, by) for name in ("means_bytes", "covariances_bytes", "lag_one_bytes", "residuals_bytes",
                                   "samples_bytes") for by in (-8, 8, 1 << 60)),
    sized("num_systems", -1), sized("num_systems", 1), sized("num_systems", 1 << 40),
    cleared("system_of_series"), lambda head: head.system_of_series.append(0),
    lambda head: head.system_of_series.__setitem__(0, 2**32 - 1),
    lambda head: head.handle.append(b"h"), cleared("log_likelihood"), cleared("observed"), cleared("system")]


@pytest.mark.parametrize("lie", SMOOTH_LIES)
def test_a_head_of_a_smooth_that_lies_is_told(lie: Change) -> None:
    with FakeServer(Fake(lie)) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.InternalError, match="a head"):
            ask(client)


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "scalar", "diagonal_bytes", "coupling_bytes",
                                  "border_bytes", "corner_bytes"])
def test_a_head_of_an_inverse_that_lies_is_told(name: str) -> None:
    with FakeServer(Fake(sized(name, 1))) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.InternalError, match=name):
            client.factor(*system(N, n)).selected_inverse("tridiagonal")


@pytest.mark.parametrize("name", ["num_samples", "num_rows", "scalar", "samples_bytes"])
def test_a_head_of_samples_that_lies_is_told(name: str) -> None:
    with FakeServer(Fake(sized(name, 1))) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.InternalError, match=name):
            client.factor(*system(N, n)).sample(2)


def failing(replies: "list[bytes]") -> Iterator[bytes]:
    yield from replies[:3]
    raise Failure(grpc.StatusCode.INTERNAL, "the device failed")


ORDERS: "list[tuple[Replies, type, str]]" = [
    (lambda replies: iter(replies[:-1]), blockd.Unavailable, "ended before"),
    (lambda replies: iter([]), blockd.Unavailable, "ended before"),
    (lambda replies: iter(replies[1:]), blockd.InternalError, "before its head"),
    (lambda replies: iter([replies[0], *replies]), blockd.InternalError, "second head"),
    (lambda replies: iter([*replies, replies[-1]]), blockd.InternalError, "more bytes"),
    (lambda replies: iter([b"", *replies]), blockd.InternalError, "neither"),
    (lambda replies: iter([b"\xff", *replies]), blockd.InternalError, "no message"),
    (lambda replies: iter([replies[0] + replies[1]]), blockd.InternalError, "neither"),
    (failing, blockd.InternalError, "device failed")]


@pytest.mark.parametrize("order, kind, why", ORDERS)
def test_replies_out_of_order_are_told(order: Replies, kind: type, why: str) -> None:
    with FakeServer(Fake(order=order)) as fake, blockd.connect(fake.target, **ONCE) as client:
        A = client.factor(*system(N, n))
        calls: "list[Callable[[], Any]]" = [lambda: A.selected_inverse("tridiagonal"), lambda: A.sample(9),
                                            lambda: ask(client)]
        for call in calls:
            with pytest.raises(kind, match=why):
                call()

    async def twin(target: str) -> None:
        async with blockd.aio.connect(target, **ONCE) as client:
            with pytest.raises(kind, match=why):
                await (await client.factor(*system(N, n))).sample(9)

    with FakeServer(Fake(order=order)) as fake:
        asyncio.run(twin(fake.target))


def test_an_answer_that_was_cut_off_is_asked_for_again() -> None:
    cut = [True]

    def once(replies: "list[bytes]") -> Iterator[bytes]:
        yield from replies[:3]
        if cut.pop() if cut else False:
            raise Failure(grpc.StatusCode.UNAVAILABLE, "restarted")
        yield from replies[3:]

    with FakeServer(Fake(order=once)) as fake, blockd.connect(fake.target) as client:
        found = client.factor(*system(N, n)).selected_inverse("tridiagonal")
    np.testing.assert_array_equal(found.diagonal.ravel(), np.arange(float(N * n * n)))
    np.testing.assert_array_equal(found.lower[0], np.arange(9.0).reshape(3, 3).T)
    assert fake.methods().count("SelectedInverse") == 2


def test_a_kept_handle_keeps_its_route() -> None:
    answers = Fake()

    def routed(method: str, request: Any, context: Any) -> Any:
        context.send_initial_metadata((("blockd-route", "there"),))
        return answers(method, request, context)

    with FakeServer(routed) as fake, blockd.connect(fake.target) as client:
        handles = ask(client, keep=True).handles
        assert [one.route for one in handles] == ["there"] * K
        del handles
        client.close()
    assert {route.get("blockd-route") for name, _, route in fake.calls if name == "Release"} == {"there"}


WRONG: "list[tuple[str, dict[str, Any]]]" = [
    ("F", {"F": np.eye(2)}), ("F", {"F": np.ones((T + 1, nx, nx))}), ("Q", {"Q": 1.0}), ("H", {"H": np.ones(nx)}),
    ("H", {"H": np.ones((ny + 1, nx))}), ("H", {"H": np.ones((ny, 0))}), ("R", {"R": np.ones((T - 1, ny, ny))}),
    ("c", {"c": np.ones(T)}), ("d", {"d": np.ones((T - 1, ny))}), ("m0", {"m0": None}), ("P0", {"P0": None}),
    ("P0", {"P0": np.eye(2)}), ("y", {"y": 1.0}), ("y", {"y": np.ones((0, ny))}), ("y", {"y": np.ones((1, 1, 1, 1))}),
    ("covariances", {"covariances": "all"}), ("num_samples", {"num_samples": -1}), ("seed", {"seed": 2**64}),
    ("lease", {"lease": 1.0}), ("lease", {"lease": -1.0, "keep": True}), ("form", {"form": "other"}),
    ("priority", {"priority": "first"}), ("diffuse", {"diffuse": [True]}),
    ("timeout", {"timeout": 0.0})]


@pytest.mark.parametrize("field, wrong", WRONG)
def test_what_does_not_fit_is_refused_before_it_is_sent(field: str, wrong: "dict[str, Any]") -> None:
    with FakeServer(Fake()) as fake, blockd.connect(fake.target) as client:
        given: "dict[str, Any]" = {**MODEL, "y": SERIES, **wrong}
        with pytest.raises(blockd.InvalidArgument) as caught:
            client.smooth(**given)
    assert caught.value.field == field and fake.calls == []


@pytest.mark.parametrize("name", ["F", "Q", "H", "R", "c", "d", "m0", "P0", "y"])
def test_numbers_that_would_be_lost_are_refused(name: str) -> None:
    given: "dict[str, Any]" = {**MODEL, "y": SERIES}
    lossy: "list[Any]" = [given[name].astype(complex), given[name].astype(object), given[name].astype("g")]
    if name != "y":
        lossy.append(kalman.masked(given[name], given[name] > 0))
    with blockd.connect() as client:
        for one in lossy:
            with pytest.raises(TypeError, match=name):
                client.smooth(**dict(given, **{name: one}))
