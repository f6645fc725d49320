"""A stream that keeps many solves in flight."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import TYPE_CHECKING, Any, Iterator, Optional

import grpc
import numpy.typing as npt

from blockd import errors
from blockd._calls import CLOSE_SECONDS, SOLVER, Core, Unique
from blockd._channel import go_on_connecting, nobody_answered
from blockd._operations import solve as _solve
from blockd._stream import Outcome, StreamState, Ticket, make_ticket
from blockd._sync import Runner, stream_ended

if TYPE_CHECKING:
    from blockd.client import Handle


class PendingSolve(Unique, concurrent.futures.Future[Any]):
    """A solve of a `Session`: a `concurrent.futures.Future` of the solution.

    Not to be made by hand. `cancel` asks the server to stop; the result is then `Cancelled`, or the
    solution if that was begun.
    """

    _instead = "it waits for one answer; take its result()"
    _ticket: Ticket
    _session: "Session"

    def result(self, timeout: Optional[float] = None) -> npt.NDArray[Any]:
        """The solution, waiting for at most `timeout` seconds.

        Raises:
            TimeoutError: not there yet; the solve goes on, and may be asked for again.
            DeadlineExceeded: the solve's own timeout has passed.
            BlockdError: as `Handle.solve`.
        """
        self._wait(timeout)
        value: npt.NDArray[Any] = super().result()
        return value

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        self._wait(timeout)
        return super().exception()

    def cancel(self) -> bool:
        """False if it is answered already."""
        return self._session._cancel(self._ticket)

    def _wait(self, timeout: Optional[float]) -> None:
        if self.done():
            return
        if timeout is not None and timeout > threading.TIMEOUT_MAX:
            timeout = None
        deadline = self._ticket.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        expires = left is not None and (timeout is None or left <= timeout)
        try:
            super().exception(left if expires else timeout)
        except concurrent.futures.TimeoutError:
            if expires:
                self._session._expire(self._ticket)
            else:
                raise TimeoutError("the solution is not there yet") from None


def _await(solves: "list[PendingSolve]", until: float) -> None:
    """Until each is answered, or its own timeout has passed."""
    for one in solves:
        try:
            one._wait(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return


class _Stream:
    """One stream to one server, and the thread that reads from it."""

    def __init__(self, session: "Session", route: str) -> None:
        self.state = StreamState(session._core.options.chunk_bytes)
        self.broken: Optional[errors.BlockdError] = None
        self._session = session
        self._closing = self._cancelled = False
        self._ready = threading.Condition(session._lock)
        method = session._channel.stream_stream(SOLVER + "SolveStream")
        self._call = method(self._messages(), metadata=session._runner.metadata(route))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def wake(self) -> None:
        self._ready.notify()

    def close(self) -> None:
        self._closing = True
        self._ready.notify()

    def cancel(self) -> None:
        self._cancelled = True
        self._call.cancel()

    def _messages(self) -> Iterator[bytes]:
        while True:
            with self._ready:
                while not (self.state.has_message() or self._closing or self.broken):
                    self._ready.wait()
                if self.broken:
                    return
                message = self.state.next_message()
                if message is None and self._closing:
                    return
            if message is not None:
                yield message

    def _read(self) -> None:
        end: errors.BlockdError = stream_ended()
        try:
            for data in self._call:
                with self._ready:
                    answers = self.state.receive(data)
                self._session._finish(answers)
        except grpc.RpcError as error:
            end = errors.from_rpc(error, self._session._core.proxy_note)
            alive = not (self._closing or self._cancelled)
            if alive and errors.is_gone(end) and nobody_answered(error):
                go_on_connecting(self._session._channel)
        except errors.BlockdError as error:
            end = error
            self._call.cancel()
        except Exception as error:  # else whoever waits would wait for ever
            end = errors.make(grpc.StatusCode.INTERNAL, f"the client failed: {error!r}")
            self._call.cancel()
        if self._cancelled:
            end = errors.make(grpc.StatusCode.CANCELLED, "the session was closed")
        with self._ready:
            self.broken = end
            left = self.state.take_all()
            self._ready.notify()
        self._session._finish([(ticket, end) for ticket in left])


class Session(Unique):
    """Keeps many solves in flight on one stream: no wait between them, and little to pay for each.

        with client.session() as session:
            pending = [session.send(handle, b) for b in sides]
            solutions = [one.result() for one in pending]

    Solves of a handle that heals are mended as elsewhere. Nothing else is tried again: a queue that
    is full is the answer. A stream that broke fails what was not answered; the next `send` opens
    another. Thread-safe. Made by `Client.session`.
    """

    _instead = "it owns a connection. Threads share the object itself; or open another: client.session()"

    def __init__(self, core: Core, runner: Runner, max_outstanding: int) -> None:
        if max_outstanding < 1:
            raise errors.invalid("max_outstanding", max_outstanding, "at least 1")
        self._core = core
        self._runner = runner
        self._channel = runner.new_channel(bulk=True)
        self._lock = threading.RLock()
        self._streams: dict[str, _Stream] = {}
        self._room = threading.BoundedSemaphore(max_outstanding)
        self._healers: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._closed = False

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(cancel=kind is not None)

    def send(self, handle: "Handle", b: Any, *, residual: bool = False, max_refinements: int = 0,
             check_finite: bool = True, priority: str = "interactive", replace_last: bool = False,
             timeout: Optional[float] = None) -> PendingSolve:
        """Starts a solve and returns at once, or when fewer than `max_outstanding` are unanswered.

        `b` is copied. `timeout`: seconds from now until the server stops working on it. `replace_last`:
        the last unanswered solve of the same handle is not wanted any more. Otherwise as
        `Handle.solve`; what is wrong with the arguments is raised here.
        """
        future = PendingSolve()
        future._session = self
        future._ticket = make_ticket(self._core, handle, b, residual, max_refinements, check_finite,
                                     priority, replace_last, timeout, future)
        self._room.acquire()
        try:
            with self._lock:
                if self._closed:
                    raise errors.closed("session")
                stream = self._stream(future._ticket)
                future._ticket.stream = stream
                stream.state.add(future._ticket)
                stream.wake()
        except BaseException:
            self._room.release()
            raise
        return future

    def close(self, cancel: bool = False) -> None:
        """Ends the session after the answers to what was sent, or cancels that.

        Waits for them no longer than the timeout of the client, and where all is answered 5 seconds at
        most for the server.
        """
        until = self._core.deadline(None)
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
            unanswered = [one.future for stream in streams for one in stream.state.unanswered()]
            for stream in streams:
                stream.close()
        if not cancel:
            _await(unanswered, until)
            until = min(until, time.monotonic() + CLOSE_SECONDS)
        for stream in streams:
            if not cancel:
                stream.reader.join(max(0.0, until - time.monotonic()))
            if stream.reader.is_alive():
                stream.cancel()
                stream.reader.join()
        if self._healers is not None:
            self._healers.shutdown(wait=not cancel)
        self._channel.close()

    def _stream(self, ticket: Ticket) -> _Stream:
        route = ticket.names.route
        stream = self._streams.get(route)
        if stream is None or stream.broken is not None:
            stream = self._streams[route] = _Stream(self, route)
        return stream

    def _cancel(self, ticket: Ticket) -> bool:
        if ticket.future.done():
            return False
        self._finish(self._withdraw(ticket))
        return True

    def _withdraw(self, ticket: Ticket) -> "list[tuple[Ticket, Outcome]]":
        """Tells the server that it is not wanted any more. What comes of that at once."""
        with self._lock:
            stream = ticket.stream
            answers: "list[tuple[Ticket, Outcome]]" = stream.state.cancel(ticket)
            stream.wake()
        return answers

    def _expire(self, ticket: Ticket) -> None:
        """The deadline has passed, whether the server was heard of or not."""
        self._withdraw(ticket)
        self._settle(ticket, errors.make(grpc.StatusCode.DEADLINE_EXCEEDED,
                                         "the timeout of the solve is over"))

    def _finish(self, answers: "list[tuple[Ticket, Outcome]]") -> None:
        for ticket, outcome in answers:
            healer = ticket.held.healer
            if healer is not None and isinstance(outcome, errors.BlockdError) and healer.mends(
                    ticket.names, outcome):
                with self._lock:
                    if self._healers is None:
                        self._healers = concurrent.futures.ThreadPoolExecutor(4)
                    self._healers.submit(self._heal, ticket, outcome)
            else:
                self._settle(ticket, outcome)

    def _heal(self, ticket: Ticket, why: errors.BlockdError) -> None:
        try:
            outcome: Outcome = self._runner.run(
                _solve.solve_again(self._core, ticket.held, ticket.names, ticket.sides,
                                        ticket.options, ticket.deadline, why))
        except BaseException as error:  # whoever waits gets it
            outcome = error
        self._settle(ticket, outcome)

    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """Once; a later outcome is dropped."""
        with self._lock:
            if ticket.settled:
                return
            ticket.settled = True
            ticket.handle = None
        self._room.release()  # first: a callback of the future may send another
        if isinstance(outcome, BaseException):
            ticket.future.set_exception(outcome)
        else:
            ticket.future.set_result(outcome)
