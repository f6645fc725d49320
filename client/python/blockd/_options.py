"""How a client connects and how patient it is; what calls may ask for. Internal."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Iterable, Optional, Union

from google.protobuf.duration_pb2 import Duration

from blockd import _target
from blockd.errors import invalid
from blockd.v1 import blockd_pb2 as pb

_ACCURACIES = {"standard": pb.ACCURACY_STANDARD, "guaranteed": pb.ACCURACY_GUARANTEED}
_LONGEST_SECONDS = 1e9
_PRIORITIES = {"interactive": pb.INTERACTIVE, "realtime": pb.REALTIME, "bulk": pb.BULK}

Matrix = Callable[[], "tuple[Any, ...]"]  # (D, E), or (D, E, border, corner)


@dataclass(frozen=True)
class Tls:
    """TLS of a connection: PEM text, not file names.

    `root_certificates`: whom to believe; None: the system's. `certificate` and `private_key`: the
    client's own, where the server asks for one. `server_name`: expected in the server's certificate;
    None: the host of the target.
    """

    root_certificates: Optional[bytes] = None
    certificate: Optional[bytes] = None
    private_key: Optional[bytes] = None
    server_name: Optional[str] = None


@dataclass(frozen=True)
class Retry:
    """When a call is tried again. Times are seconds.

    `max_attempts` counts the first one; 1: never again. All calls of a client together retry at most
    `budget_ratio` as often as they call, beyond a burst of `budget_burst`.
    """

    max_attempts: int = 5
    initial_delay: float = 0.05
    max_delay: float = 5.0
    multiplier: float = 2.0
    budget_ratio: float = 0.1
    budget_burst: float = 256.0


@dataclass(frozen=True)
class ConnectOptions:
    target: str
    tls: Optional[Tls]
    token: Optional[str]
    caller: Optional[str]
    timeout: float
    retry: Retry
    stream_threshold_bytes: int
    chunk_bytes: int

    def __post_init__(self) -> None:
        _target.check(self.target)
        object.__setattr__(self, "timeout", time_limit(self.timeout))
        if self.chunk_bytes < 1:
            raise invalid("chunk_bytes", self.chunk_bytes, "at least 1")
        if self.retry.max_attempts < 1:
            raise invalid("retry.max_attempts", self.retry.max_attempts, "at least 1")
        if self.token is None:
            return
        if not re.fullmatch(r"[\x21-\x7e]+", self.token):
            raise invalid("token", "empty or text with other characters", "visible ASCII")
        if self.tls is None and not _target.stays_on_this_host(self.target):
            raise invalid("token", f"given for {self.target} without TLS",
                          "tls, or a target on this host")


def time_limit(seconds: float) -> float:
    """Infinity where it is none: what nobody lives to see, and gRPC cannot count."""
    if not seconds > 0:
        raise invalid("timeout", seconds, "more than 0 seconds")
    return float(seconds) if seconds < _LONGEST_SECONDS else math.inf


def _seconds(name: str, value: float) -> Duration:
    if not 0 < value < _LONGEST_SECONDS:
        raise invalid(name, value, "more than 0 seconds, and less than 30 years")
    whole = int(value)
    return Duration(seconds=whole, nanos=min(int((value - whole) * 1e9), 999_999_999))


def choice(name: str, value: Any, choices: dict[Any, Any]) -> Any:
    if value not in choices:
        raise invalid(name, repr(value), " or ".join(map(repr, choices)))
    return choices[value]


def priority_class(value: str) -> Any:
    return choice("priority", value, _PRIORITIES)


def uint64(name: str, value: int) -> int:
    if not 0 <= value < 2**64:
        raise invalid(name, value, "0 to 2**64 - 1")
    return value


@dataclass
class FactorOptions:
    keep_matrix: bool = False
    check_finite: bool = True
    pin: bool = False
    logdet: bool = False
    condition_estimate: bool = False
    accuracy: str = "standard"
    priority: str = "interactive"
    lease: Optional[float] = None
    overwrite: bool = False
    idempotency_key: Optional[bytes] = None
    heal: Union[bool, Matrix] = False
    timeout: Optional[float] = None

    def proto(self, handles: "list[bytes]", key: Optional[bytes]) -> Any:
        message = pb.FactorOptions(
            handle=handles, overwrite=self.overwrite, idempotency_key=key or b"",
            keep_matrix=self.keep_matrix, check_finite=self.check_finite, pin=self.pin,
            log_determinant=self.logdet, condition_estimate=self.condition_estimate)
        message.accuracy = choice("accuracy", self.accuracy, _ACCURACIES)
        message.priority = priority_class(self.priority)
        if self.lease is not None:
            message.lease.CopyFrom(_seconds("lease", self.lease))
        return message


@lru_cache(maxsize=256)
def _encode(residual: bool, max_refinements: int, check_finite: bool, priority: str) -> bytes:
    if not 0 <= max_refinements <= 10:
        raise invalid("max_refinements", max_refinements, "0 to 10")
    encoded: bytes = pb.SolveOptions(
        residual=residual, max_refinements=max_refinements, check_finite=check_finite,
        priority=priority_class(priority)).SerializeToString()
    return encoded


class SolveOptions:
    """`encoded`: the message of the wire."""

    __slots__ = ("residual", "max_refinements", "check_finite", "priority", "timeout", "encoded")

    def __init__(self, residual: bool = False, max_refinements: int = 0, check_finite: bool = True,
                 priority: str = "interactive", timeout: Optional[float] = None) -> None:
        self.residual, self.max_refinements = residual, max_refinements
        self.check_finite, self.priority, self.timeout = check_finite, priority, timeout
        self.encoded = _encode(residual, max_refinements, check_finite, priority)

    def proto(self) -> Any:
        return pb.SolveOptions.FromString(self.encoded)


_COVARIANCES = {"full": pb.COVARIANCES, "diagonal": pb.VARIANCES,
                None: pb.SMOOTHED_COVARIANCES_UNSPECIFIED}
_FORMS = {None: pb.SMOOTH_FORM_UNSPECIFIED, "information": pb.INFORMATION, "orthogonal": pb.ORTHOGONAL,
          "double-double": pb.ORTHOGONAL_IN_DOUBLE_DOUBLE}
_OUTPUTS = {name.lower(): number for name, number in pb.SmoothOutput.items() if number != 0}


def form_name(form: int) -> str:
    """Of an answer."""
    return next((name for name, value in _FORMS.items() if name and value == form), "")


@dataclass
class SmoothOptions:
    covariances: Optional[str]
    lag_one: bool
    residuals: bool
    log_likelihood: bool
    num_samples: int
    seed: int
    keep: bool
    lease: Optional[float]
    form: Optional[str]
    outputs: "Iterable[str]"
    priority: str
    timeout: Optional[float]

    def __post_init__(self) -> None:
        if isinstance(self.outputs, str):
            raise invalid("outputs", repr(self.outputs), "a list of names")
        self.outputs = tuple(self.outputs)

    def output_names(self) -> "list[str]":
        """In the order of the wire, each one once."""
        numbers = {choice("outputs", name, _OUTPUTS) for name in self.outputs}
        return [name for name, number in _OUTPUTS.items() if number in numbers]

    def proto(self) -> Any:
        if self.num_samples < 0:
            raise invalid("num_samples", self.num_samples, "at least 0")
        if self.lease is not None and not self.keep:
            raise invalid("lease", self.lease, "none without keep=True")
        message = pb.SmoothOptions(
            covariances=choice("covariances", self.covariances, _COVARIANCES),
            lag_one_covariances=self.lag_one, log_likelihood=self.log_likelihood,
            residuals=self.residuals, num_samples=self.num_samples, seed=uint64("seed", self.seed),
            keep=self.keep, form=choice("form", self.form, _FORMS),
            output=[_OUTPUTS[name] for name in self.output_names()],
            priority=priority_class(self.priority))
        if self.lease is not None:
            message.lease.CopyFrom(_seconds("lease", self.lease))
        return message


def solve_timeout(value: float) -> Duration:
    """Of a request of a stream."""
    return _seconds("timeout", value)
