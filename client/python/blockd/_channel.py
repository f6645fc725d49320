"""Channels and metadata, for the blocking and the asyncio client alike. Internal."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from typing import Any, Optional

import grpc

from blockd import _target
from blockd._options import ConnectOptions

_ROUTE = "blockd-route"
HEALTH = "/grpc.health.v1.Health/Check"
_MAPPED_BYTES = 16 << 20
_connecting: "weakref.WeakSet[Any]" = weakref.WeakSet()  # channels
_connecting_lock = threading.Lock()


def credentials(options: ConnectOptions) -> Any:
    """None: plain text."""
    if options.tls is None:
        return None
    found = grpc.ssl_channel_credentials(options.tls.root_certificates, options.tls.private_key,
                                         options.tls.certificate)
    if options.token is None:
        return found
    return grpc.composite_channel_credentials(found,
                                              grpc.access_token_call_credentials(options.token))


def arguments(options: ConnectOptions, bulk: bool = False) -> "list[tuple[str, Any]]":
    """`bulk`: of a TCP connection of its own, for streams."""
    found: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
        # No table of headers: gRPC 1.51 keeps each deadline that differs from those before, looks
        # through all of them at every call, and forgets one only where the table has first.
        ("grpc.http2.hpack_table_size.encoder", 0),
        ("grpc.enable_retries", 0),  # ours know what may be repeated
        ("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 2000),
        ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.use_local_subchannel_pool", 1)]
    if options.tls is not None and options.tls.server_name:
        found.append(("grpc.ssl_target_name_override", options.tls.server_name))
    if _target.stays_on_this_host(options.target):
        found.append(("grpc.enable_http_proxy", 0))  # no proxy reaches it, and none sees a token
    if bulk:
        found += [("grpc.keepalive_time_ms", 360_000), ("grpc.keepalive_timeout_ms", 20_000),
                  ("grpc.http2.max_frame_size", (16 << 20) - 1),
                  ("grpc.http2.lookahead_bytes", 16 << 20),
                  ("grpc.http2.write_buffer_size", 4 << 20)]
    return found


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> None:
    """Lets glibc keep the memory that a call frees for the next one, up to 32 MiB.

    It keeps twice the size of the largest block that it mapped and that was freed. This block's pages
    are never touched. Otherwise the messages of each call are new pages, and to clear these takes
    longer than to copy, send and factor what they hold.
    """
    bytes(_MAPPED_BYTES)


def timeout(seconds: float) -> Optional[float]:
    """As gRPC and threads take it: None for no limit."""
    return None if math.isinf(seconds) else seconds


def metadata(options: ConnectOptions, route: str = "") -> "Optional[tuple[tuple[str, str], ...]]":
    found = []
    if options.caller:
        found.append(("blockd-caller", options.caller))
    if options.token is not None and options.tls is None:
        found.append(("authorization", f"Bearer {options.token}"))
    if route:
        found.append((_ROUTE, route))
    return tuple(found) or None


def route_in(received: Any) -> str:
    """Of a reply's initial metadata."""
    for key, value in received or ():
        if key == _ROUTE:
            return str(value)
    return ""


def nobody_answered(error: Any) -> bool:
    """True if what gRPC raised came from no server, and from no router."""
    return not (error.initial_metadata() or error.trailing_metadata())


def go_on_connecting(channel: Any) -> None:
    """Has a blocking channel, on which nobody answered, connect once its server is back. Returns at once.

    gRPC finishes a connection only while a call waits for it: calls on a channel that could not connect fail
    at once, and gRPC itself looks every 5 seconds. So one call waits, in a thread of its own.
    """
    with _connecting_lock:
        if channel in _connecting:
            return
        try:
            threading.Thread(target=_connect, args=(weakref.ref(channel),), daemon=True).start()
        except RuntimeError:  # no thread is left, or the process ends: gRPC looks by itself, late
            return
        _connecting.add(channel)


def _connect(held: "weakref.ref[Any]") -> None:
    while (channel := held()) is not None and _waits(channel):
        del channel  # it may go meanwhile
    if channel is not None:
        with _connecting_lock:
            _connecting.discard(channel)


def _waits(channel: Any) -> bool:
    """True if nobody has answered for a second."""
    try:
        channel.unary_unary(HEALTH)(b"", timeout=1.0, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and nobody_answered(error)
    except Exception:  # it was closed
        pass
    return False
