"""What calls return beside arrays. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, Mapping, NamedTuple, Optional, TypeVar

import numpy as np
import numpy.typing as npt

from blockd.v1 import blockd_pb2 as pb


@dataclass(frozen=True)
class Cost:
    """What a call took on the server.

    `batch_requests`: requests in the batch that it ran in, 0 if nothing had to run; `batch_items`:
    systems, or right-hand sides, of that batch. The times but `queue_seconds` are the batch's.
    """

    queue_seconds: float
    batch_requests: int
    batch_items: int
    upload_seconds: float
    compute_seconds: float
    download_seconds: float


@dataclass(frozen=True)
class Solution:
    """The answer to a solve.

    `x`: the solution, in the shape of the right-hand sides. `backward_error`: the largest
    ||b - A x|| / (||A|| ||x|| + ||b||) of the columns, where it was measured.
    `backward_error_bound`: what is promised of it in any case. `refinements`: the most steps that a
    column has taken.
    """

    x: npt.NDArray[Any]
    backward_error: Optional[float]
    backward_error_bound: float
    refinements: int
    cost: Cost
    logdet: Optional[float] = None


class Tridiagonal(NamedTuple):
    """Of inv(A): the blocks (i, i), and the blocks (i + 1, i) below them."""

    diagonal: npt.NDArray[Any]
    lower: npt.NDArray[Any]


class Arrowhead(NamedTuple):
    """Of inv(A) with a border of p rows.

    `blocks`: what is asked for without the border: an array, or a `Tridiagonal`. `border`: its
    columns beside these blocks, (N, n, p). `corner`: its own p x p. Of a batch K is in front.
    """

    blocks: Any
    border: npt.NDArray[Any]
    corner: npt.NDArray[Any]


HandleType = TypeVar("HandleType")


class SmoothErrors(NamedTuple):
    """Estimated errors from above, the largest of all steps; numbers, or arrays of K.

    `means` in standard deviations of the state given y, `variances` relative, `log_likelihood`
    absolute, if it was asked for.
    """

    means: Any
    variances: Any
    log_likelihood: Any


@dataclass(frozen=True)
class Smoothed(Generic[HandleType]):
    """The states of a model given all of y; None is what was not asked for.

    Arrays have K in front if y has it, where K is the number of series. Of a pandas y `means`, the
    diagonals of `covariances` and `standardized_residuals` are pandas too, with its index.

    `means`: (T, nx). `covariances`: (T, nx, nx), or their diagonals, (T, nx). `lag_one_covariances`:
    Cov(x(t+1), x(t)), (T-1, nx, nx). Series with the same elements missing share both; where all do,
    they are one read-only array, repeated by its strides. `log_likelihood`: log p(y); of a diffuse
    model for a flat density of 1 of x(1). `standardized_residuals`: y - H x - d over its standard
    deviation, in the shape of y; NaN where y is missing. `samples`: (num_samples, T, nx).

    `observed`: elements of y that are not missing. `handles`: with `keep`, a factorization for each
    set of missing elements; that of series k is `handles[system_of_series[k]]`. `found`: all of them
    were held already. `growth`, `backward_error_bound`: the largest of all factorizations.

    `form`: "information", "orthogonal" or "double-double". `form_reason`: why it is not the first:
    "ASKED_FOR", "COVARIANCE_IS_SINGULAR", "PRECISION_IS_INDEFINITE", "INFORMATION_FORM_INACCURATE",
    "PARTLY_DIFFUSE" or "HAS_OUTPUTS"; else "". If y has K in front, both are tuples of K.

    `outputs`: those that were asked for, by name, with a row for each step (disturbances of the state:
    for each but the last), pandas as the others. See `Client.smooth`.
    """

    means: Any
    covariances: Any
    lag_one_covariances: Any
    log_likelihood: Any
    standardized_residuals: Any
    samples: Any
    observed: Any
    handles: "tuple[HandleType, ...]"
    system_of_series: "tuple[int, ...]"
    found: bool
    growth: float
    backward_error_bound: float
    form: Any
    form_reason: Any
    estimated_errors: SmoothErrors
    outputs: "dict[str, Any]"
    cost: Cost


@dataclass(frozen=True)
class FactorizationInfo:
    """A factorization that the server holds; `idle_seconds` since its last use."""

    handle: bytes
    num_blocks: int
    block_size: int
    arrow_size: int
    dtype: "np.dtype[Any]"
    held_bytes: int
    matrix_kept: bool
    pinned: bool
    age_seconds: float
    idle_seconds: float
    lease_seconds: float
    times_solved: int
    rhs_solved: int
    times_refactored: int
    idempotency_key: bytes
    growth: float
    condition_estimate: Optional[float]
    backward_error_bound: float


@dataclass(frozen=True)
class ServerInfo:
    """The server: version, backend, device, memory, limits by name."""

    version: str
    built_backends: tuple[str, ...]
    backend: str
    device_name: str
    device_parallelism: int
    memory_bytes: int
    memory_free_bytes: int
    memory_evictable_bytes: int
    factorizations: int
    uptime_seconds: float
    server_epoch: bytes
    server_name: str
    limits: Mapping[str, str]


@dataclass(frozen=True)
class PlanLevel:
    chain_blocks: int
    segments: int
    longest_segment_blocks: int
    interior_blocks: int
    fill_blocks: int
    separator_blocks: int


@dataclass(frozen=True)
class Plan:
    """How the server would factor and solve a shape, and what that takes.

    `factor_bytes` are held for each system; the workspaces are for all of them. The predicted
    seconds are those of work that runs alone, without sending and waiting.
    """

    backend: str
    device_name: str
    levels: tuple[PlanLevel, ...]
    factor_bytes: int
    factor_workspace_bytes: int
    solve_workspace_bytes: int
    factor_flops: float
    solve_flops: float
    predicted_factor_seconds: float
    predicted_solve_seconds: float


def _take(kind: Any, message: Any, **given: Any) -> Any:
    """A result whose other fields are the message's, by name."""
    for one in fields(kind):
        if one.name not in given:
            given[one.name] = getattr(message, one.name)
    return kind(**given)


def cost(message: Any) -> Cost:
    found: Cost = _take(Cost, message)
    return found


def factorization_info(message: Any) -> FactorizationInfo:
    estimate = message.condition_estimate if message.HasField("condition_estimate") else None
    found: FactorizationInfo = _take(
        FactorizationInfo, message, condition_estimate=estimate,
        dtype=np.dtype(np.float32 if message.scalar == pb.FLOAT32 else np.float64))
    return found


def server_info(message: Any) -> ServerInfo:
    found: ServerInfo = _take(ServerInfo, message, built_backends=tuple(message.built_backends),
                              limits={one.name: one.value for one in message.limit})
    return found


def plan(message: Any) -> Plan:
    levels = tuple(_take(PlanLevel, level) for level in message.level)
    found: Plan = _take(Plan, message, levels=levels)
    return found
