"""Calls whose answer is a head, then the bytes of arrays in chunks. Internal; see _calls.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

from blockd import _wire
from blockd._arrays import Array
from blockd._calls import SOLVER, Core, Effect, Exchange, Operation, retry


@dataclass(frozen=True)
class Call:
    """What is asked, and what is expected.

    `room` gets the head, and returns where the chunks' bytes go: arrays in C order, one after
    another. It raises InternalError for a head that is not one of this request, so that what is
    allocated depends on what was asked, not on what the server says.
    """

    method: str
    messages: Callable[[], Iterator[bytes]]
    head: Any  # its message type
    room: "Callable[[Any], list[Array]]"


@dataclass(frozen=True)
class Answer:
    head: Any
    arrays: "list[Array]"
    route: str


class _Receiver:
    """Of one attempt."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._free: list[memoryview] = []
        self.head: Optional[Any] = None
        self.arrays: list[Array] = []

    def receive(self, data: bytes) -> bool:
        part = _wire.head_or_chunk(data)
        if part.is_head != (self.head is None):
            raise _wire.nonsense("a second head" if part.is_head else "a chunk before its head")
        if part.is_head:
            head = _wire.parse(self._call.head, bytes(part.data))
            self.arrays = self._call.room(head)
            self._free = [array.data.cast("B") for array in self.arrays if array.nbytes]
            self.head = head
        else:
            self._fill(part.data)
        return not self._free

    def _fill(self, chunk: memoryview) -> None:
        while len(chunk):
            if not self._free:
                raise _wire.nonsense("more bytes than its head says")
            take = min(len(chunk), len(self._free[0]))
            self._free[0][:take] = chunk[:take]
            chunk, self._free[0] = chunk[take:], self._free[0][take:]
            if not len(self._free[0]):
                del self._free[0]


def check(head: Any, **expected: "int | list[int]") -> None:
    """That its fields are these."""
    for name, value in expected.items():
        came = getattr(head, name)
        if came != value:  # of repeated fields too
            raise _wire.nonsense(f"a head whose {name} is {came}, expected {value}")


def ask(core: Core, call: Call, deadline: float, route: str = "",
        heals: bool = False) -> Operation[Answer]:
    attempts: list[_Receiver] = []

    def attempt(seconds: float) -> Effect:
        attempts[:] = [_Receiver(call)]
        return Exchange(SOLVER + call.method, call.messages, attempts[0].receive, seconds, route)

    found: str = yield from retry(core, deadline, attempt, heals)
    return Answer(attempts[0].head, attempts[0].arrays, found or route)
