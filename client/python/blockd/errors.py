"""What can go wrong, as exceptions whose fields say what a program can act on.

Every failed call raises a `BlockdError` with the status code, the message and the typed details of
the answer. Its subclasses are also the built-in exceptions that a Python programmer expects:
`InvalidArgument` is a `ValueError`, `InsufficientMemory` a `MemoryError`, `DeadlineExceeded` a
`TimeoutError`, `Unavailable` a `ConnectionError`, `HandleNotFound` a `LookupError`, and
`NotPositiveDefinite`, `SingularCovariance` and `NotSmoothable` a `numpy.linalg.LinAlgError`.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from blockd.v1 import blockd_pb2 as pb

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_TYPE_PREFIX = "type.googleapis.com/blockd.v1."


class BlockdError(Exception):
    """A call failed.

    Attributes:
        code: the `grpc.StatusCode`.
        message: for people.
        details: the messages of `blockd.v1` that came with the status.
        retry_after: seconds after which the same call may succeed, or None.
        failures: of a batch: the system's index -> its error. Empty for one system.
    """

    def __init__(self, code: grpc.StatusCode, message: str, details: Iterable[Message] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = tuple(details)
        self.failures: dict[int, BlockdError] = {}
        self.retry_after: Optional[float] = None
        retry = self.detail(pb.RetryAfter)
        if retry is not None and retry.HasField("delay"):
            self.retry_after = _seconds(retry.delay)
        self._read_details()

    def _read_details(self) -> None:
        """Sets the fields of a subclass."""

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    def __reduce__(self) -> Any:
        details = [(type(one).__name__, one.SerializeToString()) for one in self.details]
        others = {k: one for k, one in self.failures.items() if one is not self}
        own = [k for k, one in self.failures.items() if one is self]
        return _restore, (type(self), self.code.value[0], self.message, details, others, own)

    def detail(self, kind: type) -> Any:
        """The detail of this message type, or None."""
        return next((one for one in self.details if isinstance(one, kind)), None)


def reason_name(kind: Any, value: int) -> str:
    """The name of a value of an enum; "" for none, and for one that a newer server has."""
    return str(kind.Name(value)) if value != 0 and value in kind.values() else ""


class InvalidArgument(BlockdError, ValueError):
    """Something in the request is wrong.

    Attributes: `field` (its path), `came`, `expected`; all empty where the answer names no field.
    """

    def _read_details(self) -> None:
        wrong = self.detail(pb.InvalidField) or pb.InvalidField()
        self.field: str = wrong.field
        self.came: str = wrong.came
        self.expected: str = wrong.expected


class ConfigurationError(InvalidArgument):
    """The client cannot work as it was made or is used.

    `field`: "target", for one that names no server; "client" or "session", for one that is closed or
    used outside of its event loop. Nothing was sent.
    """


class NotPositiveDefinite(InvalidArgument, np.linalg.LinAlgError):
    """The matrix is not positive definite.

    Attributes: `system` (index in the batch), `block` and `row` (0-based), `minor`: the order of the
    first leading minor that is not positive, block * n + row + 1; `elimination_order`: True where
    block and row name the pivot that failed in the server's own order of elimination.
    """

    def _read_details(self) -> None:
        super()._read_details()
        where = self.detail(pb.NotPositiveDefinite) or pb.NotPositiveDefinite()
        self.system: int = where.system
        self.block: int = where.block
        self.row: int = where.row
        self.minor: int = where.minor
        self.elimination_order: bool = where.elimination_order


class SingularCovariance(InvalidArgument, np.linalg.LinAlgError):
    """A covariance of a model is not positive semidefinite, or not definite where it has to be.

    Attributes: `matrix`, "Q", "R" or "P"; `step` and `row`, 0-based.
    """

    def _read_details(self) -> None:
        super()._read_details()
        where = self.detail(pb.SingularCovariance) or pb.SingularCovariance()
        self.matrix: str = where.matrix
        self.step: int = where.step
        self.row: int = where.row


class NotSmoothable(InvalidArgument, np.linalg.LinAlgError):
    """No form, or not the one that was asked for, gives the states of a model.

    Attributes: `reason`, one of "NOT_IDENTIFIED" (y says nothing of `directions` of a diffuse x(1)),
    "CONTRADICTION" (element `row` of y at `step` has no noise and is not what the others imply) and
    "INACCURATE" (`means_error`, `variances_error` or `log_likelihood_error`, which are estimates, is
    too large); `form`, the last one that was tried, as "ORTHOGONAL"; `system`, an index of the
    distinct sets of missing elements.
    """

    def _read_details(self) -> None:
        super()._read_details()
        why = self.detail(pb.NotSmoothable) or pb.NotSmoothable()
        self.reason: str = reason_name(pb.NotSmoothable.Reason, why.reason)
        self.form: str = reason_name(pb.SmoothForm, why.form)
        self.system: int = why.system
        self.step: int = why.step
        self.row: int = why.row
        self.directions: int = why.directions
        self.means_error: float = why.means_error
        self.variances_error: float = why.variances_error
        self.log_likelihood_error: float = why.log_likelihood_error


class HandleNotFound(BlockdError, LookupError):
    """The server does not hold the handle: factor again (`heal=True` does so by itself).

    Attributes: `reason`, one of "NEVER_EXISTED", "RELEASED", "EVICTED", "EXPIRED", "RESTARTED",
    "FAILED_REFACTOR", "OTHER_SERVER" and "" (not said); `handle`; `server_name`: who answers;
    `server_epoch` and `owner_epoch`: who answers, and who made it.
    """

    def _read_details(self) -> None:
        why = self.detail(pb.HandleNotFound) or pb.HandleNotFound()
        self.reason: str = reason_name(pb.HandleNotFound.Reason, why.reason)
        self.handle: bytes = why.handle
        self.server_name: str = why.server_name
        self.server_epoch: bytes = why.server_epoch
        self.owner_epoch: bytes = why.owner_epoch


class FailedPrecondition(BlockdError):
    """A residual or refinement was asked for, but the matrix was not kept (`keep_matrix=True`)."""


class ResourceExhausted(BlockdError):
    """Something is used up; `retry_after` is set where waiting helps."""


class InsufficientMemory(ResourceExhausted, MemoryError):
    """It does not fit into the server's memory.

    Attributes: `asked_bytes`, `free_bytes`, `evictable_bytes`, `total_bytes`.
    """

    def _read_details(self) -> None:
        memory = self.detail(pb.InsufficientMemory) or pb.InsufficientMemory()
        self.asked_bytes: int = memory.asked_bytes
        self.free_bytes: int = memory.free_bytes
        self.evictable_bytes: int = memory.evictable_bytes
        self.total_bytes: int = memory.total_bytes


class LimitExceeded(ResourceExhausted):
    """A message or request is over a limit of the server. Waiting does not help.

    Attributes: `limit` (its name, as in `ServerInfo.limits`), `asked_bytes`, `limit_bytes`.
    """

    def _read_details(self) -> None:
        over = self.detail(pb.LimitExceeded) or pb.LimitExceeded()
        self.limit: str = over.limit
        self.asked_bytes: int = over.asked_bytes
        self.limit_bytes: int = over.limit_bytes


class QuotaExceeded(ResourceExhausted):
    """Over a quota of the tenant. Attributes: `quota`, `limit`, `used`, `asked`, `tenant`."""

    def _read_details(self) -> None:
        over = self.detail(pb.QuotaExceeded) or pb.QuotaExceeded()
        self.quota: str = over.quota
        self.limit: float = over.limit
        self.used: float = over.used
        self.asked: float = over.asked
        self.tenant: str = over.tenant


class Unavailable(BlockdError, ConnectionError):
    """No server is there, or its queue is full (`retry_after`). Retries were used up."""


class ServerDraining(Unavailable):
    """The server is shutting down. Attribute: `server_name`."""

    def _read_details(self) -> None:
        self.server_name: str = (self.detail(pb.ServerDraining) or pb.ServerDraining()).server_name


class DeadlineExceeded(BlockdError, TimeoutError):
    """The timeout passed, retries and uploads included."""


class DeadlineUnreachable(DeadlineExceeded):
    """The server sees that the deadline cannot be met; nothing was computed.

    Attributes: `predicted` and `left`, seconds from then to the answer and to the deadline.
    """

    def _read_details(self) -> None:
        late = self.detail(pb.DeadlineUnreachable) or pb.DeadlineUnreachable()
        self.predicted: float = _seconds(late.predicted)
        self.left: float = _seconds(late.left)


class Cancelled(BlockdError):
    """A request of a session was cancelled, or replaced by a newer one."""


class Unauthenticated(BlockdError, PermissionError):
    """The server does not know who asks."""


class PermissionDenied(BlockdError, PermissionError):
    """The server knows who asks, and refuses."""


class InternalError(BlockdError):
    """The server's device or a library failed, or an answer makes no sense."""


_BY_DETAIL: dict[type, type[BlockdError]] = {
    pb.NotPositiveDefinite: NotPositiveDefinite,
    pb.SingularCovariance: SingularCovariance,
    pb.NotSmoothable: NotSmoothable,
    pb.HandleNotFound: HandleNotFound,
    pb.InsufficientMemory: InsufficientMemory,
    pb.LimitExceeded: LimitExceeded,
    pb.QuotaExceeded: QuotaExceeded,
    pb.ServerDraining: ServerDraining,
    pb.DeadlineUnreachable: DeadlineUnreachable,
}
_BY_CODE: dict[grpc.StatusCode, type[BlockdError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: HandleNotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.INTERNAL: InternalError,
}


def _seconds(duration: Any) -> float:
    return float(duration.seconds) + 1e-9 * float(duration.nanos)


def _restore(kind: "type[BlockdError]", code: int, message: str, details: list[tuple[str, bytes]],
             others: dict[int, BlockdError], own: list[int]) -> BlockdError:
    """Of a pickle."""
    messages = [getattr(pb, name).FromString(data) for name, data in details]
    error = kind(_CODES[code], message, messages)
    error.failures = dict(sorted({**others, **dict.fromkeys(own, error)}.items()))
    return error


def make(code: grpc.StatusCode, message: str, details: Iterable[Message] = ()) -> BlockdError:
    """The exception for a status."""
    details = tuple(details)
    for detail in details:
        if type(detail) in _BY_DETAIL:
            return _BY_DETAIL[type(detail)](code, message, details)
    return _BY_CODE.get(code, BlockdError)(code, message, details)


def from_status(status: pb.RpcStatus) -> BlockdError:
    """Of the status that an answer carries for one system or one solve."""
    details = []
    for one in status.details:
        name = one.type_url[len(_TYPE_PREFIX):]
        kind = getattr(pb, name, None) if one.type_url.startswith(_TYPE_PREFIX) else None
        if kind is None:
            continue
        try:
            details.append(kind.FromString(one.value))
        except DecodeError:
            continue
    return make(_CODES.get(status.code, grpc.StatusCode.UNKNOWN), status.message, details)


def from_rpc(error: Any, proxy_note: str = "") -> BlockdError:
    """Of the `grpc.RpcError` of a call that nobody here has cancelled.

    Where the server, or a router, ends such a call without an answer of its own, that is UNAVAILABLE.
    `proxy_note`: what lies between, said where no server may have been reached.
    """
    code: grpc.StatusCode = error.code()
    message: str = error.details() or ""
    reset = code is grpc.StatusCode.INTERNAL and "RST_STREAM" in message
    if code is grpc.StatusCode.CANCELLED or reset:
        return make(grpc.StatusCode.UNAVAILABLE, f"the server ended the call: {message}{proxy_note}")
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            status = pb.RpcStatus.FromString(value)
        except DecodeError:
            break
        return from_status(pb.RpcStatus(code=code.value[0], message=message,
                                        details=status.details))
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        message += proxy_note
    return make(code, message)


def invalid(field: str, came: object, expected: str) -> InvalidArgument:
    """What the server would say of a wrong argument, said before anything is sent."""
    return _wrong(InvalidArgument, field, came, expected)


def misconfigured(field: str, came: object, expected: str) -> ConfigurationError:
    """The same of what a client is, or where it is used."""
    return _wrong(ConfigurationError, field, came, expected)


def closed(what: str) -> ConfigurationError:
    return misconfigured(what, "closed", "an open one: connect again" if what == "client" else
                         "an open one: client.session()")


W = TypeVar("W", bound=InvalidArgument)


def _wrong(kind: "type[W]", field: str, came: object, expected: str) -> W:
    detail = pb.InvalidField(field=field, came=str(came), expected=expected)
    return kind(grpc.StatusCode.INVALID_ARGUMENT, f"{field} is {came}, expected {expected}", (detail,))


def is_gone(error: BlockdError) -> bool:
    """No server was there to answer."""
    return isinstance(error, Unavailable) and error.retry_after is None


def is_lost(error: BlockdError) -> bool:
    """Factoring again mends it: the handle is not held any more, or its server drains or is gone."""
    if is_gone(error) or isinstance(error, ServerDraining):
        return True
    return isinstance(error, HandleNotFound) and error.reason in (
        "EVICTED", "EXPIRED", "RESTARTED", "OTHER_SERVER")


def waiting_helps(error: BlockdError) -> bool:
    """The same call may succeed later, with nothing changed by who makes it."""
    if isinstance(error, Unavailable):
        return True
    if not isinstance(error, ResourceExhausted) or error.retry_after is None:
        return False
    if isinstance(error, QuotaExceeded):
        return error.asked <= error.limit
    if isinstance(error, InsufficientMemory):
        return error.asked_bytes <= error.total_bytes
    return not isinstance(error, LimitExceeded)
