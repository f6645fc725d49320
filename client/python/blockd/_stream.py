"""The state of one SolveStream: what is to be sent, what is unanswered. Internal.

It knows no thread and no event loop; whoever drives it holds a lock, or is the event loop. Solves
that wait for their turn on the connection go together in one message, a frame, which is what makes
many small ones fast.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, Iterator, Optional, Union

import grpc
import numpy as np

from blockd import _wire, errors
from blockd._arrays import Rhs, empty_like, rhs
from blockd._calls import Core
from blockd._operations.factorization import Factorization
from blockd._options import SolveOptions, solve_timeout
from blockd.v1 import blockd_pb2 as pb

FRAME_BYTES = 1 << 20  # of right-hand sides that go together
FRAME_SOLVES = 256
LARGEST_FRAME = 32 << 20  # of a batch, which is whole in one message

Outcome = Union["np.ndarray[Any, Any]", BaseException]


class Ticket:
    """One solve of the caller's: of one system, or of all of a batch."""

    __slots__ = ("handle", "held", "names", "sides", "options", "replace_last", "deadline", "future", "id",
                 "count", "cancelled", "settled", "stream", "placed", "received")

    def __init__(self, handle: Factorization, sides: Rhs, options: SolveOptions, replace_last: bool,
                 future: Any) -> None:
        held = handle._held
        held.check_open()
        self.handle: Optional[Factorization] = handle  # until it is answered: else Python forgets it
        self.held = held
        self.names = held.names
        self.sides = sides
        self.options = options
        self.replace_last = replace_last
        timeout = options.timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.future = future
        self.id = 0  # of its message; 0: not sent yet
        self.count = len(self.names.handles)
        self.cancelled = self.settled = False
        self.stream: Any = None  # that it was given to
        self.placed: Any = None  # of one whose solution comes in chunks
        self.received = 0

    def goes_with(self, other: "Ticket") -> bool:
        """Whether both may be in one frame."""
        return (not self.replace_last and self.sides.data.dtype == other.sides.data.dtype
                and self.options.encoded == other.options.encoded
                and self.options.timeout == other.options.timeout)


def make_ticket(core: Core, handle: Factorization, b: Any, residual: bool, max_refinements: int,
                check_finite: bool, priority: str, replace_last: bool, timeout: Optional[float],
                future: Any) -> Ticket:
    """Of the arguments of `send`, checked. The right-hand sides are a copy."""
    if timeout is not None and math.isinf(core.limit(timeout)):
        timeout = None
    options = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
    held = handle._held
    sides = rhs(b, held.shape, copy=True)
    if sides.data.size == 0:
        raise errors.invalid("b", f"of shape {sides.shape}", "at least one column")
    if held.shape.batched and (replace_last or not all(held.names.handles)):
        raise errors.invalid("handle", "a batch",
                             "one system, or a batch without failures and replace_last")
    if held.shape.batched and (sides.data.nbytes > LARGEST_FRAME
                               or held.shape.systems > _wire.MAX_SOLVES):
        raise errors.invalid("b", f"a batch of {sides.data.nbytes} bytes",
                             f"at most {LARGEST_FRAME}; Handle.solve takes more")
    return Ticket(handle, sides, options, replace_last, future)


class StreamState:
    """Of one stream, from its first message to its end."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._queue: deque[Ticket] = deque()
        self._cancels: deque[int] = deque()
        self._chunks: Optional[Iterator[bytes]] = None  # of the request that is being sent
        self._pending: dict[int, list[Ticket]] = {}
        self._next_id = 1

    # --- Sending --------------------------------------------------------------------------------

    def add(self, ticket: Ticket) -> None:
        self._queue.append(ticket)

    def cancel(self, ticket: Ticket) -> "list[tuple[Ticket, Outcome]]":
        """It is not wanted any more. What comes of that at once."""
        if ticket.id == 0:
            try:
                self._queue.remove(ticket)
            except ValueError:
                return []  # answered
            return [(ticket, errors.make(grpc.StatusCode.CANCELLED,
                                         "cancelled before it was sent"))]
        ticket.cancelled = True
        together = self._pending.get(ticket.id, [])
        if together and all(one.cancelled for one in together):
            self._cancels.append(ticket.id)
        return []

    def unanswered(self) -> "list[Ticket]":
        return [*(ticket for together in self._pending.values() for ticket in together), *self._queue]

    def has_message(self) -> bool:
        return bool(self._queue or self._cancels or self._chunks)

    def next_message(self) -> Optional[bytes]:
        """What is to be sent next; None: nothing."""
        if self._chunks is not None:
            chunk = next(self._chunks, None)
            if chunk is not None:
                return chunk
            self._chunks = None
        if self._cancels:
            number = self._cancels.popleft()
            cancel: bytes = pb.SolveStreamRequest(id=number, cancel=pb.Cancel()).SerializeToString()
            return cancel
        if not self._queue:
            return None
        together = self._take_together()
        number, self._next_id = self._next_id, self._next_id + 1
        self._pending[number] = together
        for ticket in together:
            ticket.id = number
        head = pb.SolveStreamRequest(id=number, replace_last=together[0].replace_last)
        deadlines = [ticket.deadline for ticket in together if ticket.deadline is not None]
        if deadlines:
            head.timeout.CopyFrom(solve_timeout(max(1e-6, max(deadlines) - time.monotonic())))
        if len(together) == 1 and together[0].count == 1:
            return self._request(number, together[0], head.SerializeToString())
        return self._frame(together, head.SerializeToString())

    def _take_together(self) -> "list[Ticket]":
        first = self._queue.popleft()
        together, nbytes, solves = [first], first.sides.data.nbytes, first.count
        if first.replace_last:
            return together
        while self._queue:
            more = self._queue[0]
            nbytes += more.sides.data.nbytes
            solves += more.count
            if nbytes > FRAME_BYTES or solves > FRAME_SOLVES or not more.goes_with(first):
                break
            together.append(self._queue.popleft())
        return together

    def _request(self, number: int, ticket: Ticket, head: bytes) -> bytes:
        data = ticket.sides.data[0]
        chunked = data.nbytes > self._chunk_bytes
        if chunked:
            self._chunks = _wire.rhs_chunks(number, data, self._chunk_bytes)
        pieces = _wire.solve_pieces(ticket.names.handles[0], data, ticket.options.encoded, chunked)
        return _wire.stream_message(head, 2, pieces)

    def _frame(self, together: "list[Ticket]", head: bytes) -> bytes:
        handles = [handle for ticket in together for handle in ticket.names.handles]
        fields = pb.SolveManyRequest(handles=b"".join(handles))
        columns, nbytes = [], []
        for ticket in together:
            columns += [ticket.sides.columns] * ticket.count
            nbytes += [ticket.sides.data[0].nbytes] * ticket.count
        if any(d != 1 for d in columns):
            fields.num_rhs.extend(columns)
        if any(size != nbytes[0] for size in nbytes):
            fields.rhs_bytes.extend(nbytes)
        data = [ticket.sides.data for ticket in together]
        return _wire.stream_message(
            head, 7, _wire.solve_many_pieces(fields, together[0].options.encoded, data))

    # --- Receiving ------------------------------------------------------------------------------

    def receive(self, data: bytes) -> "list[tuple[Ticket, Outcome]]":
        """Which tickets that answers, and how. Raises InternalError for what makes no sense."""
        reply = _wire.stream_reply(data)
        number = reply.message.id
        together = self._pending.get(number)
        if together is None:
            raise _wire.nonsense(f"a reply that does not belong to any request (id {number})")
        if reply.part == "status":
            error = errors.from_status(reply.message.status)
            del self._pending[number]
            return [(ticket, error) for ticket in together]
        start, end = reply.place
        if reply.part == "chunk":
            return self._receive_bytes(number, together, data, start, end)
        if reply.part == "many":
            for failure in reply.answer.failure:
                self._note_failure(together, failure)
        elif reply.part != "reply":
            raise _wire.nonsense("a reply without a part")
        for ticket in together:
            if ticket.placed is None:
                ticket.placed = empty_like(ticket.sides.data)
        if end == start:
            return []  # chunks follow
        return self._receive_bytes(number, together, data, start, end)

    def _note_failure(self, together: "list[Ticket]", failure: Any) -> None:
        at = failure.solve
        for ticket in together:
            if at < ticket.count:
                if not isinstance(ticket.placed, errors.BlockdError):
                    ticket.placed = errors.from_status(failure.status)
                ticket.placed.failures[at] = errors.from_status(failure.status)
                return
            at -= ticket.count
        raise _wire.nonsense("a failure of a solve that was not asked for")

    def _receive_bytes(self, number: int, together: "list[Ticket]", data: bytes, start: int,
                       end: int) -> "list[tuple[Ticket, Outcome]]":
        """The next bytes of the solutions, which lie as the right-hand sides did."""
        view = memoryview(data)
        for ticket in together:
            missing = ticket.sides.data.nbytes - ticket.received
            take = min(missing, end - start)
            if take and ticket.placed is None:
                raise _wire.nonsense("a chunk before its answer")
            if take and not isinstance(ticket.placed, errors.BlockdError):
                ticket.placed.data.cast("B")[
                    ticket.received:ticket.received + take] = view[start:start + take]
            ticket.received += take
            start += take
        if start < end:
            raise _wire.nonsense("more bytes than the solutions have")
        if together[-1].received < together[-1].sides.data.nbytes:
            return []
        del self._pending[number]
        return [(ticket, ticket.placed if isinstance(ticket.placed, errors.BlockdError)
                 else ticket.sides.solution(ticket.placed)) for ticket in together]

    def take_all(self) -> "list[Ticket]":
        """What will not be answered any more, in the order of sending."""
        found = [ticket for number in sorted(self._pending) for ticket in self._pending[number]]
        found += self._queue
        self._pending.clear()
        self._queue.clear()
        self._cancels.clear()
        self._chunks = None
        return found
