"""The ways of a call, once for the blocking and the asyncio client. Internal.

An operation is a generator: it yields what is to be done on the wire, and gets the outcome back, or
the BlockdError thrown in. It knows no thread and no event loop; `_sync` and `_asyncio` run it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Generator, Iterator, Optional, TypeVar, Union

import grpc

from blockd import errors
from blockd._options import ConnectOptions, time_limit
from blockd._retry import Backoff, RetryBudget
from blockd._target import proxy_note

T = TypeVar("T")


@dataclass(frozen=True)
class Unary:
    """One message each way. The outcome is a Reply."""

    method: str
    request: bytes
    timeout: float
    route: str = ""


@dataclass(frozen=True)
class Upload:
    """Many messages there, one back: a Reply. They travel beside the small calls."""

    method: str
    messages: Callable[[], Iterator[bytes]]
    timeout: float
    route: str = ""


@dataclass(frozen=True)
class Exchange:
    """Messages each way, one or many. The outcome is the route that the replies name, or "".

    `receive` gets every reply, and returns whether the answer is whole by then.
    """

    method: str
    messages: Callable[[], Iterator[bytes]]
    receive: Callable[[bytes], bool]
    timeout: float
    route: str = ""


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class Join:
    """Waits for the operation that `slot` runs, and begins `start()` there if there is none.

    It goes on beyond the timeout, which raises DeadlineExceeded here. The outcome is its own.
    """

    slot: "Slot"
    start: Callable[[], "Operation[None]"]
    timeout: float


class Slot:
    """A place for one operation under way that several callers wait for."""

    def __init__(self) -> None:
        self.running: Any = None


@dataclass(frozen=True)
class Reply:
    data: bytes
    route: str  # empty: the reply names none


Effect = Union[Unary, Upload, Exchange, Sleep, Join]
Operation = Generator[Effect, Any, T]

# For what close() does not wait for otherwise: releases, and streams on which nothing is unanswered.
CLOSE_SECONDS = 5.0
SOLVER = "/blockd.v1.Solver/"


class Unique:
    """Stands for one thing elsewhere: a second object would close or release it for the first."""

    _instead: str

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} is not copied or pickled: {self._instead}")


class Core:
    """What all calls of a client share. Thread-safe."""

    def __init__(self, options: ConnectOptions) -> None:
        if not isinstance(options, ConnectOptions):  # a target, of who has not seen connect()
            raise TypeError("clients are made by blockd.connect(target) or blockd.aio.connect(target)")
        self.options = options
        self.budget = RetryBudget(options.retry)
        self.proxy_note = proxy_note(options.target)

    def limit(self, timeout: Optional[float]) -> float:
        """Of a call, in seconds; infinity: none."""
        return self.options.timeout if timeout is None else time_limit(timeout)

    def deadline(self, timeout: Optional[float]) -> float:
        """On the monotonic clock."""
        return time.monotonic() + self.limit(timeout)


def left(deadline: float) -> float:
    """Seconds; DeadlineExceeded if none are left."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise errors.make(grpc.StatusCode.DEADLINE_EXCEEDED, "the timeout is over")
    return seconds


def retry(core: Core, deadline: float, call: Callable[[float], Effect],
          heals: bool = False) -> Operation[Any]:
    """Makes the call of so many seconds until it succeeds, fails for good, or time is up.

    With `heals`, what factoring again mends is not waited for; a server that seems gone is asked twice.
    """
    core.budget.count_call()
    backoff: Optional[Backoff] = None
    while True:
        try:
            return (yield call(left(deadline)))
        except errors.BlockdError as error:
            if backoff is None:
                backoff = Backoff(core.options.retry, deadline, core.budget)
            wait = backoff.next(error, time.monotonic())
            if wait is None:
                raise
            if heals and errors.is_lost(error) and (
                    backoff.attempts >= 2 or not errors.is_gone(error)):
                raise
        yield Sleep(wait)
