"""Runs operations with blocking calls. Internal. Thread-safe."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any, Callable

import grpc

from blockd import _channel, errors
from blockd._calls import (Core, Exchange, Join, Operation, Reply, Sleep, T, Unary, Upload)


def stream_ended() -> errors.BlockdError:
    return errors.make(grpc.StatusCode.UNAVAILABLE, "the stream ended before its answer")


class Runner:
    """The channels of a client."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._channel = self.new_channel(bulk=False)
        self._bulk = self.new_channel(bulk=True)
        self._unary: dict[str, Any] = {}
        self._plain = _channel.metadata(core.options)
        self._joining = threading.Lock()
        self._closed = False
        self._perform: dict[type, Callable[[Any], Any]] = {
            Unary: self._do_unary, Upload: self._do_upload, Exchange: self._do_exchange,
            Sleep: lambda effect: time.sleep(min(effect.seconds, threading.TIMEOUT_MAX)), Join: self._do_join}

    def new_channel(self, bulk: bool) -> Any:
        options = self.core.options
        credentials = _channel.credentials(options)
        arguments = _channel.arguments(options, bulk)
        if credentials is None:
            return grpc.insecure_channel(options.target, arguments)
        return grpc.secure_channel(options.target, credentials, arguments)

    def metadata(self, route: str) -> Any:
        return _channel.metadata(self.core.options, route) if route else self._plain

    def check_open(self) -> None:
        if self._closed:
            raise errors.closed("client")

    def run(self, operation: Operation[T]) -> T:
        try:
            self.check_open()
            effect = next(operation)
            while True:
                try:
                    outcome = self._perform[type(effect)](effect)
                except errors.BlockdError as error:
                    effect = operation.throw(error)
                except (grpc.RpcError, ValueError) as error:
                    effect = operation.throw(self._error(error, effect))
                else:
                    effect = operation.send(outcome)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    def _error(self, error: Exception, effect: Any) -> Exception:
        """What the operation gets for what gRPC raised; a ValueError for a channel that was closed."""
        if self._closed:
            return errors.closed("client")
        if not isinstance(error, grpc.RpcError):
            return error
        found = errors.from_rpc(error, self.core.proxy_note)
        if errors.is_gone(found) and _channel.nobody_answered(error):
            _channel.go_on_connecting(self._channel if isinstance(effect, Unary) else self._bulk)
        return found

    def close(self) -> None:
        self._closed = True
        self._channel.close()
        self._bulk.close()

    def _method(self, name: str) -> Any:
        found = self._unary.get(name)
        if found is None:
            found = self._unary[name] = self._channel.unary_unary(name)
        return found

    def _do_unary(self, effect: Unary) -> Reply:
        data, call = self._method(effect.method).with_call(
            effect.request, timeout=_channel.timeout(effect.timeout), metadata=self.metadata(effect.route))
        return Reply(data, _channel.route_in(call.initial_metadata()))

    def _do_upload(self, effect: Upload) -> Reply:
        data, call = self._bulk.stream_unary(effect.method).with_call(
            effect.messages(), timeout=_channel.timeout(effect.timeout), metadata=self.metadata(effect.route))
        return Reply(data, _channel.route_in(call.initial_metadata()))

    def _do_exchange(self, effect: Exchange) -> str:
        call = self._bulk.stream_stream(effect.method)(
            effect.messages(), timeout=_channel.timeout(effect.timeout), metadata=self.metadata(effect.route))
        done = False
        try:
            for data in call:
                done = effect.receive(data)
        except grpc.RpcError:
            if not done:
                raise
        finally:
            call.cancel()
        if not done:
            raise stream_ended()
        return _channel.route_in(call.initial_metadata())

    def _do_join(self, effect: Join) -> None:
        with self._joining:
            future = effect.slot.running
            if future is None:
                future = concurrent.futures.Future()
                thread = threading.Thread(target=self._run_in_slot,
                                          args=(effect.slot, future, effect.start()), daemon=True)
                thread.start()
                effect.slot.running = future
        try:
            future.result(_channel.timeout(effect.timeout))
        except concurrent.futures.TimeoutError as error:
            if isinstance(error, errors.BlockdError) or future.done():
                raise
            raise errors.make(grpc.StatusCode.DEADLINE_EXCEEDED,
                              "the timeout passed while it was factored again") from None

    def _run_in_slot(self, slot: Any, future: Any, operation: Operation[None]) -> None:
        try:
            self.run(operation)
        except BaseException as error:  # whoever waits gets it
            outcome: Any = error
        else:
            outcome = None
        with self._joining:
            slot.running = None
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
