"""The asyncio twin of `blockd.Session`. Internal; `blockd.aio` shows it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, AsyncIterator, Optional

import grpc

from blockd import errors
from blockd._asyncio import AsyncRunner
from blockd._calls import CLOSE_SECONDS, SOLVER, Core, Unique
from blockd._channel import timeout as time_left
from blockd._operations import solve as _solve
from blockd._stream import Outcome, StreamState, Ticket, make_ticket
from blockd._sync import stream_ended

if TYPE_CHECKING:
    from blockd.aio import AsyncHandle


class _Stream:
    """One stream to one server, and the task that reads from it."""

    def __init__(self, session: "AsyncSession", route: str) -> None:
        self.state = StreamState(session._core.options.chunk_bytes)
        self.broken: Optional[errors.BlockdError] = None
        self._session = session
        self._closing = False
        self._ready = asyncio.Event()
        method = session._channel.stream_stream(SOLVER + "SolveStream")
        self._call = method(self._messages(), metadata=session._runner.metadata(route))
        self.reader = asyncio.ensure_future(self._read())

    def wake(self) -> None:
        self._ready.set()

    def close(self) -> None:
        self._closing = True
        self._ready.set()

    def cancel(self) -> None:
        self._call.cancel()

    async def _messages(self) -> AsyncIterator[bytes]:
        while self.broken is None:
            message = self.state.next_message()
            if message is not None:
                yield message
            elif self._closing:
                return
            else:
                self._ready.clear()
                await self._ready.wait()

    async def _read(self) -> None:
        end: errors.BlockdError = stream_ended()
        try:
            async for data in self._call:
                self._session._finish(self.state.receive(data))
        except grpc.RpcError as error:
            end = errors.from_rpc(error, self._session._core.proxy_note)
        except asyncio.CancelledError:
            end = errors.make(grpc.StatusCode.CANCELLED, "the session was closed")
        except errors.BlockdError as error:
            end = error
            self._call.cancel()
        except Exception as error:  # else whoever waits would wait for ever
            end = errors.make(grpc.StatusCode.INTERNAL, f"the client failed: {error!r}")
            self._call.cancel()
        self.broken = end
        self._ready.set()
        self._session._finish([(ticket, end) for ticket in self.state.take_all()])


class AsyncSession(Unique):
    """As `blockd.Session`; `send` waits only for room, and returns an `asyncio.Future`."""

    _instead = "it owns a connection. Tasks share the object itself; or open another: client.session()"

    def __init__(self, core: Core, runner: AsyncRunner, max_outstanding: int) -> None:
        if max_outstanding < 1:
            raise errors.invalid("max_outstanding", max_outstanding, "at least 1")
        self._core = core
        self._runner = runner
        self._channel = runner.new_channel(bulk=True)
        self._streams: dict[str, _Stream] = {}
        self._room = asyncio.BoundedSemaphore(max_outstanding)
        self._closed = False
        self._healing: "set[asyncio.Task[None]]" = set()

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        await self.close(cancel=kind is not None)

    async def send(self, handle: "AsyncHandle", b: Any, *, residual: bool = False,
                   max_refinements: int = 0, check_finite: bool = True,
                   priority: str = "interactive", replace_last: bool = False,
                   timeout: Optional[float] = None) -> "asyncio.Future[Any]":
        """As `Session.send`. Cancelling the future asks the server to stop."""
        self._runner.check_loop()
        future: "asyncio.Future[Any]" = asyncio.get_running_loop().create_future()
        ticket = make_ticket(self._core, handle, b, residual, max_refinements, check_finite, priority,
                             replace_last, timeout, future)
        await self._room.acquire()
        if self._closed:
            self._room.release()
            raise errors.closed("session")
        future.add_done_callback(lambda _: self._done(ticket))
        stream = ticket.stream = self._stream(ticket)
        stream.state.add(ticket)
        stream.wake()
        if ticket.deadline is not None:
            asyncio.get_running_loop().call_later(timeout or 0.0, self._expire, ticket)
        return future

    async def close(self, cancel: bool = False) -> None:
        """As `Session.close`."""
        self._closed = True
        streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        readers = {stream.reader for stream in streams}
        if readers and not cancel:
            unanswered = {one.future for stream in streams for one in stream.state.unanswered()}
            until = self._core.deadline(None)
            if unanswered:
                await asyncio.wait(unanswered, timeout=time_left(self._core.options.timeout))
            _, readers = await asyncio.wait(
                readers, timeout=min(CLOSE_SECONDS, max(0.0, until - time.monotonic())))
        if readers:
            for stream in streams:
                stream.cancel()
            await asyncio.wait(readers)
        if self._healing:
            await asyncio.wait(self._healing)
        await self._channel.close()

    def _stream(self, ticket: Ticket) -> _Stream:
        route = ticket.names.route
        stream = self._streams.get(route)
        if stream is None or stream.broken is not None:
            stream = self._streams[route] = _Stream(self, route)
        return stream

    def _done(self, ticket: Ticket) -> None:
        self._room.release()
        ticket.handle = None
        if ticket.future.cancelled():
            self._withdraw(ticket)

    def _withdraw(self, ticket: Ticket) -> None:
        ticket.stream.state.cancel(ticket)
        ticket.stream.wake()

    def _expire(self, ticket: Ticket) -> None:
        """The deadline has passed, whether the server was heard of or not."""
        if not ticket.future.done():
            self._withdraw(ticket)
            self._settle(ticket, errors.make(grpc.StatusCode.DEADLINE_EXCEEDED,
                                             "the timeout of the solve is over"))

    def _finish(self, answers: "list[tuple[Ticket, Outcome]]") -> None:
        for ticket, outcome in answers:
            healer = ticket.held.healer
            if healer is not None and isinstance(outcome, errors.BlockdError) and healer.mends(
                    ticket.names, outcome):
                task = asyncio.ensure_future(self._heal(ticket, outcome))
                self._healing.add(task)
                task.add_done_callback(self._healing.discard)
            else:
                self._settle(ticket, outcome)

    async def _heal(self, ticket: Ticket, why: errors.BlockdError) -> None:
        try:
            outcome: Outcome = await self._runner.run(
                _solve.solve_again(self._core, ticket.held, ticket.names, ticket.sides,
                                        ticket.options, ticket.deadline, why))
        except Exception as error:  # whoever waits gets it
            outcome = error
        self._settle(ticket, outcome)

    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """Once; a later outcome is dropped."""
        if ticket.future.done():
            return
        if isinstance(outcome, BaseException):
            ticket.future.set_exception(outcome)
            ticket.future.exception()  # looked at: asyncio would complain of what nobody reads
        else:
            ticket.future.set_result(outcome)
