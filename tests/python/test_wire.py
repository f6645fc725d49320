"""Messages that are put together, and cut, by hand are those that protobuf writes and reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockd
from blockd import _wire
from blockd._arrays import System
from blockd._options import SolveOptions
from blockd.v1 import blockd_pb2 as pb
from support.problems import bordered, system


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**32, 2**63])
def test_varints(value: int) -> None:
    cost = pb.Cost.FromString(b"\x10" + _wire.varint(value)) if value < 2**63 else None
    if cost is not None:
        assert cost.batch_requests == value
    assert _wire._read_varint(b"x" + _wire.varint(value) + b"y", 1)[0] == value


def test_a_solve_request_is_the_one_of_protobuf() -> None:
    rhs = np.arange(6.0).reshape(2, 3)
    options = SolveOptions(residual=True, max_refinements=3)
    ours = pb.SolveRequest.FromString(_wire.solve_request(b"h" * 24, rhs, options.encoded))
    assert ours == pb.SolveRequest(handle=b"h" * 24, num_rhs=2, rhs=rhs.tobytes(),
                                   options=options.proto())


def lower_columns(blocks: Any) -> bytes:
    columns = range(blocks.shape[-1])
    return b"".join(block[j:, j].tobytes() for block in blocks for j in columns)


@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_triangle_that_counts_travels_alone(n: int, order: Any) -> None:
    D = np.array(np.random.default_rng(n).normal(size=(3, n, n)), order=order)
    E = np.ones((2, n, n))
    for lower, counts in ((True, D), (False, D.swapaxes(1, 2))):
        systems = System(D, E, lower, False)
        message = pb.FactorRequest.FromString(_wire.factor_request(systems, pb.FactorOptions()))
        assert message.system[0].diagonal == lower_columns(counts)
        assert systems.nbytes == len(message.system[0].diagonal) + E.nbytes


def test_blocks_without_much_above_their_diagonal_and_large_ones_travel_whole() -> None:
    for n in (1, 65):
        D, E = system(3, n)
        message = pb.FactorRequest.FromString(
            _wire.factor_request(System(D, E, True, False), pb.FactorOptions()))
        assert message.spec.diagonal_form == pb.FULL
        assert message.system[0].diagonal == D.swapaxes(1, 2).tobytes()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 24, 72, 100, 10_000])
@pytest.mark.parametrize("border", [False, True])
def test_a_stream_has_the_bytes_of_the_message(chunk_bytes: int, border: bool) -> None:
    D, E, B, C = bordered(4, 3, 2, batch=(2,))
    systems = System(D, E, True, False, B if border else None, C if border else None)
    whole = pb.FactorRequest.FromString(_wire.factor_request(systems, pb.FactorOptions(pin=True)))
    messages = [pb.FactorStreamRequest.FromString(one)
                for one in _wire.factor_stream(systems, pb.FactorOptions(pin=True), chunk_bytes)]
    assert messages[0].header.spec == whole.spec and messages[0].header.options == whole.options
    sent = b"".join(one.chunk for one in messages[1:])
    assert sent == b"".join(one.diagonal + one.coupling + one.border + one.corner for one in whole.system)
    # Column-major, the lower triangle alone, and A(i, i+1).
    assert whole.spec.diagonal_form == pb.PACKED_LOWER
    assert whole.system[1].diagonal == lower_columns(D[1])
    assert whole.spec.coupling_form == pb.SUPERDIAGONAL and whole.system[1].coupling == E[1].tobytes()
    assert whole.spec.arrow_size == (2 if border else 0)
    assert whole.system[1].border == (B[1].tobytes() if border else b"")
    assert whole.system[1].corner == (C[1].T.tobytes() if border else b"")


def test_small_blocks_travel_together() -> None:
    D, E = system(3, 2, batch=(100,))
    systems = System(D, E, True, False)
    chunks = [pb.FactorStreamRequest.FromString(one).chunk
              for one in _wire.factor_stream(systems, pb.FactorOptions(), 1000)][1:]
    assert max(map(len, chunks)) <= 1000 and len(chunks) <= 2 * systems.nbytes / 1000


REPLIES: "list[Any]" = [
    pb.SolveStreamReply(id=300, reply=pb.SolveReply(solution=b"abcd", refinements=2)),
    pb.SolveStreamReply(id=1, many=pb.SolveManyReply(solution=b"abcd", backward_error_bound=[1, 2])),
    pb.SolveStreamReply(id=2, chunk=b"abcd"),
    pb.SolveStreamReply(id=3, reply=pb.SolveReply(refinements=2), solution_bytes=8),
    pb.SolveStreamReply(id=4, status=pb.RpcStatus(code=5, message="no")),
    pb.SolveStreamReply(), pb.SolveStreamReply(id=5, reply=pb.SolveReply())]


@pytest.mark.parametrize("message", REPLIES)
def test_a_reply_is_cut_at_its_bytes(message: Any) -> None:
    reply = _wire.stream_reply(message.SerializeToString())
    part = message.WhichOneof("part")
    assert reply.part == part and reply.message.id == message.id
    assert reply.message.solution_bytes == message.solution_bytes
    expected = b""
    if part == "chunk":
        expected = message.chunk
    elif part in ("reply", "many"):
        answer = getattr(message, part)
        expected = answer.solution
        answer = type(answer).FromString(answer.SerializeToString())
        answer.ClearField("solution")
        assert reply.answer == answer
    else:
        assert reply.message == message and reply.answer is None
    assert reply.data[reply.place[0]:reply.place[1]] == expected


@pytest.mark.filterwarnings("ignore:Unexpected end-group tag")
def test_bytes_that_are_no_message_are_told() -> None:
    """Every prefix of a message, and random bytes: an answer, or InternalError."""
    data = REPLIES[0].SerializeToString() + REPLIES[1].SerializeToString()
    rng = np.random.default_rng(0)
    for case in [data[:k] for k in range(len(data))] + [rng.bytes(k % 30) for k in range(3000)]:
        try:
            _wire.stream_reply(case)
        except blockd.InternalError:
            pass


def test_a_varint_has_ten_bytes_at_most() -> None:
    """A longer one would be a longer number with each of its bytes: time that grows with the square."""
    length = b"\x80" * 9 + b"\x00"
    assert _wire.split(b"\x0a" + length, 1) == ((11, 11), b"")
    with pytest.raises(blockd.InternalError):
        _wire.split(b"\x0a\x80" + length, 1)
