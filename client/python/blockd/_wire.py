"""Messages whose large bytes are neither copied into a protobuf object nor out of one.

A protobuf message may be written field by field, so the bytes of an array follow a head that is
written here, and a reply is cut at its bytes field before protobuf parses what is left.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from blockd import errors
from blockd._arrays import Array, Rhs, Shape, System
from blockd.v1 import blockd_pb2 as pb

Piece = Any  # bytes, or an array in C order, whose memory is read as it is

MAX_SOLVES = 65536  # of one message


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, length: int) -> bytes:
    """What stands before the bytes of a length-delimited field."""
    return varint(number << 3 | 2) + varint(length)


def _length(pieces: "list[Piece]") -> int:
    return sum(piece.nbytes if isinstance(piece, (np.ndarray, memoryview)) else len(piece)
               for piece in pieces)


_VARINT_BITS = 70  # of its ten bytes


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError


def _fields(data: bytes, start: int, end: int) -> "list[tuple[int, int, int, int]]":
    """Of a message: number, begin, begin of the bytes (its end, if it is a number), end.

    InternalError if it is no message.
    """
    at, found = start, []
    try:
        while at < end:
            begin = at
            tag, at = _read_varint(data, at)
            kind = tag & 7
            value = -1
            if kind == 2:
                length, value = _read_varint(data, at)
                at = value + length
            elif kind == 0:
                _, at = _read_varint(data, at)
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
            else:
                raise IndexError
            found.append((tag >> 3, begin, at if value < 0 else value, at))
        if at != end:
            raise IndexError
    except IndexError:
        raise nonsense("something that is no message") from None
    return found


def split(data: bytes, number: int, start: int = 0,
          end: Optional[int] = None) -> tuple[tuple[int, int], bytes]:
    """Where the bytes of the field `number` lie in a message, and the message without them.

    InternalError if it is no message.
    """
    place, rest = (start, start), []
    for found, begin, value, at in _fields(data, start, len(data) if end is None else end):
        if found == number:
            place = (value, at)
        else:
            rest.append(data[begin:at])
    return place, b"".join(rest)


def parse(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise nonsense(f"something that is no {kind.__name__}") from None


def nonsense(what: str) -> errors.BlockdError:
    return errors.make(grpc.StatusCode.INTERNAL, f"the server sent {what}")


# --- Requests ---------------------------------------------------------------------------------------


def spec_of(system: System) -> pb.SystemSpec:
    return pb.SystemSpec(
        num_blocks=system.num_blocks, block_size=system.block_size,
        scalar=pb.FLOAT32 if system.dtype.itemsize == 4 else pb.FLOAT64,
        diagonal_form=pb.PACKED_LOWER if system.packed else pb.FULL,
        coupling_form=pb.SUPERDIAGONAL if system.superdiagonal else pb.SUBDIAGONAL,
        arrow_size=system.arrow_size)


def _system_data(system: System, index: int, number: int) -> "list[Piece]":
    pieces: list[Piece] = []
    for part, data in enumerate(system.data(index), 1):
        pieces += [field(part, data.nbytes), data]
    return [field(number, _length(pieces)), *pieces]


def factor_request(system: System, options: pb.FactorOptions) -> bytes:
    head = pb.FactorRequest(spec=spec_of(system), options=options).SerializeToString()
    pieces: list[Piece] = [head]
    for index in range(system.count):
        pieces += _system_data(system, index, 2)
    return b"".join(pieces)


def factor_stream(system: System, options: pb.FactorOptions, chunk_bytes: int) -> Iterator[bytes]:
    header = pb.FactorStreamHeader(spec=spec_of(system), num_systems=system.count, options=options)
    yield pb.FactorStreamRequest(header=header).SerializeToString()
    yield from chunks(system.pieces(chunk_bytes), chunk_bytes)


def chunks(pieces: Iterator[Array], chunk_bytes: int) -> Iterator[bytes]:
    """Messages of one chunk each, in the field 2, of which each has as many pieces as fit."""
    together: list[Piece] = []
    nbytes = 0
    for piece in pieces:
        if together and nbytes + piece.nbytes > chunk_bytes:
            yield b"".join((field(2, nbytes), *together))
            together, nbytes = [], 0
        together.append(piece.data)
        nbytes += piece.nbytes
    yield b"".join((field(2, nbytes), *together))


def solve_request(handle: bytes, rhs: Array, options: bytes) -> bytes:
    """A SolveRequest for `rhs` (d, N n + p), which may be left out: the header of one in chunks."""
    return b"".join(solve_pieces(handle, rhs, options))


def solve_pieces(handle: bytes, rhs: Array, options: bytes, header: bool = False) -> "list[Piece]":
    pieces: list[Piece] = [field(1, len(handle)), handle, b"\x10", varint(rhs.shape[0]),
                           field(4, len(options)), options]
    if not header:
        pieces += [field(3, rhs.nbytes), rhs]
    return pieces


def solve_many_pieces(fields: pb.SolveManyRequest, options: bytes,
                      rhs: "list[Array]") -> "list[Piece]":
    nbytes = sum(one.nbytes for one in rhs)
    return [fields.SerializeToString(), field(6, len(options)), options, field(3, nbytes), *rhs]


def factor_solve_request(system: System, rhs: Rhs, fields: pb.FactorSolveRequest) -> bytes:
    pieces: list[Piece] = [fields.SerializeToString(), *_system_data(system, 0, 2),
                           field(4, rhs.data.nbytes), rhs.data]
    return b"".join(pieces)


def stream_message(head: bytes, number: int, pieces: "list[Piece]") -> bytes:
    """A SolveStreamRequest: `head` (its id and timeout), then the part in the field `number`."""
    return b"".join([head, field(number, _length(pieces)), *pieces])


def rhs_chunks(request_id: int, rhs: Array, chunk_bytes: int) -> Iterator[bytes]:
    """The chunks of a request whose header has gone."""
    data = np.ascontiguousarray(rhs).data.cast("B")
    head = b"\x08" + varint(request_id)
    for at in range(0, len(data), chunk_bytes):
        piece = data[at:at + chunk_bytes]
        yield b"".join((head, field(3, len(piece)), piece))


# --- Replies ----------------------------------------------------------------------------------------


def solution_in(data: bytes, place: tuple[int, int], like: Array) -> Array:
    """The solution that lies in `data`, of the shape and dtype of `like`; the caller's own memory."""
    start, end = place
    if end - start != like.nbytes:
        raise nonsense(f"a solution of {end - start} bytes, expected {like.nbytes}")
    found: Array = np.frombuffer(data, like.dtype, like.size, start).reshape(like.shape).copy()
    return found


class StreamReply(NamedTuple):
    """A SolveStreamReply, cut at its bytes."""

    message: Any  # without what follows
    part: Optional[str]  # of the oneof
    answer: Any  # of "reply" and "many": it, without its bytes
    data: bytes
    place: tuple[int, int]  # in data: of those bytes, or of the chunk


_PARTS = {2: "reply", 3: "chunk", 6: "many"}


def stream_reply(data: bytes) -> StreamReply:
    part, outer, rest = 0, (0, 0), []
    for number, begin, value, end in _fields(data, 0, len(data)):
        if number in _PARTS:
            part, outer = number, (value, end)
        else:
            rest.append(data[begin:end])
    message = parse(pb.SolveStreamReply, b"".join(rest))
    if part == 0:
        return StreamReply(message, message.WhichOneof("part"), None, data, outer)
    if part == 3:
        return StreamReply(message, "chunk", None, data, outer)
    inner, inner_rest = split(data, 1, *outer)
    answer = parse(pb.SolveReply if part == 2 else pb.SolveManyReply, inner_rest)
    return StreamReply(message, _PARTS[part], answer, data, inner)


class HeadOrChunk(NamedTuple):
    """A reply whose field 1 is a head and whose field 2 a chunk, of which it has one."""

    is_head: bool
    data: memoryview


def head_or_chunk(data: bytes) -> HeadOrChunk:
    found = [one for one in _fields(data, 0, len(data)) if one[0] in (1, 2)]
    if len(found) != 1:
        raise nonsense("a reply that is neither a head nor a chunk")
    number, _, start, end = found[0]
    return HeadOrChunk(number == 1, memoryview(data)[start:end])


def log_determinant(message: Any, padding: float) -> Optional[float]:
    """Without what the padding adds."""
    return float(message.log_determinant) - padding if message.HasField("log_determinant") else None


def backward_error(message: Any) -> Optional[float]:
    return float(message.backward_error) if message.HasField("backward_error") else None


def shape_of(info: pb.FactorizationInfo) -> Shape:
    dtype = np.dtype("<f4" if info.scalar == pb.FLOAT32 else "<f8")
    return Shape(1, False, int(info.num_blocks), int(info.block_size), dtype, int(info.arrow_size))
