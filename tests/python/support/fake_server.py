"""A server that answers as a test says: failures, routes, and what it was asked."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any, Callable, Optional

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from blockd.v1 import blockd_pb2 as pb

STREAMING = {"FactorStream": "stream_unary", "SolveStream": "stream_stream", "Smooth": "stream_stream",
             "SelectedInverse": "unary_stream", "Sample": "unary_stream"}


class Failure(Exception):
    def __init__(self, code: grpc.StatusCode, message: str = "no", *details: Any) -> None:
        super().__init__(message)
        packed = []
        for one in details:
            packed.append(AnyMessage(type_url=f"type.googleapis.com/{one.DESCRIPTOR.full_name}",
                                     value=one.SerializeToString()))
        self.code = code
        self.status = pb.RpcStatus(code=code.value[0], message=message, details=packed)


def retry_after(seconds: float) -> Any:
    return pb.RetryAfter(delay=Duration(nanos=int(seconds * 1e9)))


class FakeServer:
    """`answer(method, request, context)` returns the bytes of the reply, or raises a Failure.

    `request` is the bytes of the message, or the iterator of those of a stream. Calls are noted in
    `calls`: the method, the request if it is one message, the metadata.
    """

    def __init__(self, answer: Callable[[str, Any, Any], Any], port: int = 0,
                 also: "tuple[str, ...]" = ()) -> None:
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []
        self._answer = answer
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.target = f"127.0.0.1:{self.port}"
        for address in also:
            self._server.add_insecure_port(address)
        self._server.start()

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def methods(self) -> "list[str]":
        return [method for method, _, _ in self.calls]

    def service(self, details: Any) -> Optional[Any]:
        method = details.method.rsplit("/", 1)[1]
        kind = STREAMING.get(method, "unary_unary")
        metadata = dict(details.invocation_metadata)

        def reply(request: Any, context: Any) -> Any:
            with self._lock:
                one = request if isinstance(request, bytes) else None
                self.calls.append((method, one, metadata))
            try:
                return self._answer(method, request, context)
            except Failure as failure:
                fail(failure, context)

        def replies(request: Any, context: Any) -> Any:
            try:
                yield from reply(request, context)
            except Failure as failure:  # between two replies
                fail(failure, context)

        def fail(failure: Failure, context: Any) -> None:
            context.set_trailing_metadata((("grpc-status-details-bin",
                                            failure.status.SerializeToString()),))
            context.abort(failure.code, failure.status.message)

        handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return handler(replies if kind.endswith("_stream") else reply)


def factor_reply(handle: bytes = b"h" * 24, systems: int = 1) -> bytes:
    reply = pb.FactorReply(system=[pb.FactoredSystem(handle=handle, growth=1)] * systems)
    data: bytes = reply.SerializeToString()
    return data


def echo(method: str, request: Any, context: Any) -> bytes:
    """Factors by a fixed handle, and solves with the identity."""
    if method == "Solve":
        asked = pb.SolveRequest.FromString(request)
        return bytes(pb.SolveReply(solution=asked.rhs).SerializeToString())
    if method == "Factor":
        return factor_reply()
    if method == "FactorStream":
        for _ in request:
            pass
        return factor_reply()
    return b""
