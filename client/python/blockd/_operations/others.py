"""The calls beside factor and solve. Internal; see _calls.py."""

from __future__ import annotations

import math
import time
from typing import Any, Optional

import grpc
import numpy as np

from blockd import _wire, errors, results
from blockd._arrays import Rhs, Shape, System, rhs
from blockd._calls import SOLVER, Core, Operation, Reply, Sleep, Unary, left, retry
from blockd._channel import HEALTH
from blockd._operations.factor import factor
from blockd._operations.held import Held, Names, release_names
from blockd._operations.solve import solve_with_info
from blockd._options import FactorOptions, SolveOptions
from blockd.v1 import blockd_pb2 as pb


# --- One call for everything ------------------------------------------------------------------------


def factor_solve(core: Core, system: System, b: Any, options: FactorOptions,
                 solving: SolveOptions) -> Operation[results.Solution]:
    """Factors, solves, and keeps nothing. What one message cannot have takes three calls."""
    shape = Shape.of(system)
    if shape.batched:
        raise errors.invalid("D", "a batch", "one system: (N, n, n)")
    sides = rhs(b, shape)
    if sides.data.size == 0:
        raise errors.invalid("b", f"of shape {sides.shape}", "at least one column")
    deadline = core.deadline(options.timeout)
    if system.nbytes + sides.data.nbytes > core.options.stream_threshold_bytes:
        return (yield from _factor_then_solve(core, system, sides, b, options, solving, deadline))
    asked = options.proto([], None)
    fields = pb.FactorSolveRequest(
        spec=_wire.spec_of(system), num_rhs=sides.columns, options=solving.proto(),
        check_finite=options.check_finite, log_determinant=options.logdet, accuracy=asked.accuracy)
    request = _wire.factor_solve_request(system, sides, fields)
    answer: Reply = yield from retry(
        core, deadline, lambda seconds: Unary(SOLVER + "FactorSolve", request, seconds))
    place, rest = _wire.split(answer.data, 1)
    reply = _wire.parse(pb.FactorSolveReply, rest)
    return results.Solution(
        sides.solution(_wire.solution_in(answer.data, place, sides.data)),
        _wire.backward_error(reply), reply.backward_error_bound, reply.refinements,
        results.cost(reply.cost), _wire.log_determinant(reply, system.padding_logdet))


def _factor_then_solve(core: Core, system: System, sides: Rhs, b: Any, options: FactorOptions,
                       solving: SolveOptions, deadline: float) -> Operation[results.Solution]:
    options.keep_matrix = solving.residual or solving.max_refinements > 0
    again = True  # once, where the server went away in between
    while True:
        options.timeout = left(deadline)
        factored = yield from factor(core, system, options, True, False)
        solving.timeout = left(deadline)
        try:
            found = yield from solve_with_info(core, factored.held, b, solving)
        except errors.BlockdError as error:
            yield from release_names(core, factored.held.names)
            if not (again and errors.is_lost(error)):
                raise
            again = False
            continue
        yield from release_names(core, factored.held.names)
        return results.Solution(found.x, found.backward_error, found.backward_error_bound,
                                found.refinements, found.cost,
                                _wire.log_determinant(factored.made.reply.system[0],
                                                      system.padding_logdet))


# --- Handles and the server -------------------------------------------------------------------------


def _ask(core: Core, method: str, request: Any, reply: Any, route: str = "",
         timeout: Optional[float] = None) -> Operation[Any]:
    """A call of one small message each way. The outcome: the answer, and where it is from."""
    data = request.SerializeToString()
    answer: Reply = yield from retry(
        core, core.deadline(timeout), lambda seconds: Unary(SOLVER + method, data, seconds, route))
    return _wire.parse(reply, answer.data), answer.route or route


def release(core: Core, names: Optional[Names],
            timeout: Optional[float] = None) -> Operation[int]:
    """Bytes given back; 0 of what is not held any more."""
    handles = [handle for handle in names.handles if handle] if names else []
    if names is None or not handles:
        return 0
    try:
        reply, _ = yield from _ask(core, "Release", pb.ReleaseRequest(handle=handles),
                                   pb.ReleaseReply, names.route, timeout)
    except errors.HandleNotFound:
        return 0
    return int(reply.released_bytes)


def get(core: Core, handle: bytes, route: str) -> "Operation[tuple[Any, str]]":
    return _ask(core, "GetFactorization", pb.GetFactorizationRequest(handle=handle),
                pb.FactorizationInfo, route)


def get_held(core: Core, held: Held, system: int) -> Operation[results.FactorizationInfo]:
    held.check_open()
    names = held.names
    info, _ = yield from get(core, names.handles[system], names.route)
    return results.factorization_info(info)


def adopt(core: Core, handle: bytes, route: str, padding: int) -> Operation[Held]:
    info, found = yield from get(core, handle, route)
    shape = _wire.shape_of(info)
    if not 0 <= padding < shape.block_size:
        raise errors.invalid("padding", padding, f"0 to {shape.block_size - 1}")
    return Held(shape._replace(padding=padding), [handle], found)


def list_factorizations(core: Core) -> "Operation[list[results.FactorizationInfo]]":
    found: list[results.FactorizationInfo] = []
    request, route = pb.ListFactorizationsRequest(), ""
    while True:
        reply, route = yield from _ask(core, "ListFactorizations", request,
                                       pb.ListFactorizationsReply, route)
        found += map(results.factorization_info, reply.factorization)
        if not reply.next_page_token:
            return found
        request.page_token = reply.next_page_token


def server_info(core: Core) -> Operation[results.ServerInfo]:
    reply, _ = yield from _ask(core, "GetServerInfo", pb.GetServerInfoRequest(), pb.ServerInfo)
    return results.server_info(reply)


def plan(core: Core, num_blocks: int, block_size: int, arrow_size: int, dtype: Any,
         num_systems: int, num_rhs: int) -> Operation[results.Plan]:
    scalar = {np.dtype(np.float32): pb.FLOAT32, np.dtype(np.float64): pb.FLOAT64}.get(np.dtype(dtype))
    if scalar is None:
        raise errors.invalid("dtype", str(np.dtype(dtype)), "float32 or float64")
    spec = pb.SystemSpec(num_blocks=num_blocks, block_size=block_size, scalar=scalar,
                         diagonal_form=pb.FULL, coupling_form=pb.SUBDIAGONAL,
                         arrow_size=arrow_size)
    request = pb.GetPlanRequest(spec=spec, num_systems=num_systems, num_rhs=num_rhs)
    reply, _ = yield from _ask(core, "GetPlan", request, pb.Plan)
    return results.plan(reply)


def check_health(core: Core, timeout: float = math.inf) -> Operation[None]:
    """One attempt: who asks for the health wants it as it is now."""
    answer: Reply = yield Unary(HEALTH, b"", min(timeout, core.options.timeout))
    if answer.data != b"\x08\x01":
        raise errors.make(grpc.StatusCode.UNAVAILABLE,
                          "the server is not serving (it drains, or its device failed)")


def wait_until_serving(core: Core, timeout: float) -> Operation[None]:
    until = core.deadline(timeout)
    while True:
        try:
            return (yield from check_health(core, max(0.001, until - time.monotonic())))
        except errors.Unavailable:
            if time.monotonic() + 0.05 >= until:
                raise
        yield Sleep(0.05)
