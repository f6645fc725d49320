"""Runs operations in an event loop. Internal. Not thread-safe, as little else in asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio

from blockd import _channel, errors
from blockd._calls import (SOLVER, Core, Exchange, Join, Operation, Reply, Sleep, T, Unary, Upload)
from blockd._sync import stream_ended
from blockd.v1 import blockd_pb2 as pb


# The calls that may say a route which the caller does not know.
_ROUTED = {SOLVER + name for name in ("Factor", "GetFactorization", "ListFactorizations")}


class AsyncRunner:
    """The channels of a client. Made and used in one event loop."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._loop = self._running_loop()
        self._closed = False
        self._channel = self.new_channel(bulk=False)
        self._bulk = self.new_channel(bulk=True)
        self._unary: dict[str, Any] = {}
        self._plain = _channel.metadata(core.options)
        self._background: "set[asyncio.Task[None]]" = set()
        self._perform: dict[type, Callable[[Any], Awaitable[Any]]] = {
            Unary: self._do_unary, Upload: self._do_upload, Exchange: self._do_exchange,
            Sleep: lambda effect: asyncio.sleep(effect.seconds), Join: self._do_join}

    def new_channel(self, bulk: bool) -> Any:
        options = self.core.options
        credentials = _channel.credentials(options)
        arguments = _channel.arguments(options, bulk)
        if credentials is None:
            return grpc.aio.insecure_channel(options.target, arguments)
        return grpc.aio.secure_channel(options.target, credentials, arguments)

    def metadata(self, route: str) -> Any:
        return _channel.metadata(self.core.options, route) if route else self._plain

    @staticmethod
    def _running_loop() -> asyncio.AbstractEventLoop:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            raise errors.misconfigured(
                "client", "made or used outside of an event loop",
                "one that a coroutine makes: `async with blockd.aio.connect() as client`") from None

    def check_open(self) -> None:
        if self._closed:
            raise errors.closed("client")
        self.check_loop()

    def check_loop(self) -> None:
        if self._running_loop() is not self._loop:
            raise errors.misconfigured("client", "used in another event loop than it was made in",
                                       "a client of each event loop's own")

    async def run(self, operation: Operation[T]) -> T:
        try:
            self.check_open()
            effect = next(operation)
            while True:
                try:
                    outcome = await self._perform[type(effect)](effect)
                except errors.BlockdError as error:
                    effect = operation.throw(error)
                except (grpc.RpcError, grpc.aio.UsageError, asyncio.CancelledError) as error:
                    effect = operation.throw(self._error(error))
                else:
                    effect = operation.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    def start(self, work: Any) -> Any:
        """In the background; until `close`, which waits for it."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: all who waited for it may have given up

    def _error(self, error: BaseException) -> BaseException:
        """What the operation gets for what gRPC raised, which cancels the calls of a channel that is closed."""
        task: Any = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (
                not self._closed or getattr(task, "cancelling", int)()):
            return error
        if self._closed:
            return errors.closed("client")
        return (errors.from_rpc(error, self.core.proxy_note) if isinstance(error, grpc.RpcError)
                else error)

    async def close(self, seconds: float) -> None:
        self._closed = True
        for wait in (seconds, None):
            if self._background:
                _, late = await asyncio.wait(self._background, timeout=wait)
                for task in late:
                    task.cancel()
        await self._channel.close()
        await self._bulk.close()

    async def _do_unary(self, effect: Unary) -> Reply:
        method = self._unary.get(effect.method)
        if method is None:
            method = self._unary[effect.method] = self._channel.unary_unary(effect.method)
        call = method(effect.request, timeout=_channel.timeout(effect.timeout),
                      metadata=self.metadata(effect.route))
        data = await call
        if effect.method not in _ROUTED:
            return Reply(data, "")
        return Reply(data, _channel.route_in(await call.initial_metadata()))

    async def _do_upload(self, effect: Upload) -> Reply:
        call = self._bulk.stream_unary(effect.method)(
            _each(effect.messages()), timeout=_channel.timeout(effect.timeout),
            metadata=self.metadata(effect.route))
        data = await call
        return Reply(data, _channel.route_in(await call.initial_metadata()))

    async def _do_exchange(self, effect: Exchange) -> str:
        call = self._bulk.stream_stream(effect.method)(
            _each(effect.messages()), timeout=_channel.timeout(effect.timeout),
            metadata=self.metadata(effect.route))
        done = False
        try:
            async for data in call:
                done = effect.receive(data)
            route = _channel.route_in(await call.initial_metadata())
        except grpc.RpcError:
            if not done:
                raise
            route = _channel.route_in(await call.initial_metadata())
        finally:
            call.cancel()
        if not done:
            raise stream_ended()
        return route

    async def _do_join(self, effect: Join) -> None:
        task = effect.slot.running
        if task is None:
            task = effect.slot.running = self.start(self._run_in_slot(effect))
        done, _ = await asyncio.wait({task}, timeout=_channel.timeout(effect.timeout))
        if not done:
            raise errors.make(grpc.StatusCode.DEADLINE_EXCEEDED,
                              "the timeout passed while it was factored again")
        task.result()

    async def _run_in_slot(self, effect: Join) -> None:
        try:
            await self.run(effect.start())
        finally:
            effect.slot.running = None


async def _each(messages: Any) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
