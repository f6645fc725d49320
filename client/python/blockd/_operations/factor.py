"""Factor and refactor. Internal; see _calls.py."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import grpc

from blockd import _wire, errors
from blockd._arrays import Shape, System
from blockd._calls import SOLVER, Core, Effect, Operation, Reply, Unary, Upload, retry
from blockd._operations.held import Healer, Held, Names, on_held, release_names
from blockd._options import FactorOptions
from blockd.v1 import blockd_pb2 as pb


@dataclass(frozen=True)
class Made:
    """The answer to a Factor."""

    reply: Any
    handles: "list[bytes]"  # one a system; empty where it failed
    route: str
    padding_logdet: float  # of each system: what the padding adds to its log-determinant

    def failures(self) -> "dict[int, errors.BlockdError]":
        return {k: errors.from_status(one.status) for k, one in enumerate(self.reply.system)
                if one.status.code != 0}


def factor_systems(core: Core, system: System, options: FactorOptions, handles: "list[bytes]",
                   route: str, deadline: float) -> Operation[Made]:
    """A Factor, or a refactor of `handles`. One key serves all attempts, so none factors twice."""
    key = options.idempotency_key or (b"" if handles else os.urandom(16))
    proto = options.proto(handles, key)
    if system.nbytes > core.options.stream_threshold_bytes:
        def call(seconds: float) -> Effect:
            return Upload(SOLVER + "FactorStream", lambda: _wire.factor_stream(
                system, proto, core.options.chunk_bytes), seconds, route)
    else:
        request = _wire.factor_request(system, proto)

        def call(seconds: float) -> Effect:
            return Unary(SOLVER + "Factor", request, seconds, route)
    answer: Reply = yield from retry(core, deadline, call, heals=bool(handles))
    reply = _wire.parse(pb.FactorReply, answer.data)
    if len(reply.system) != system.count:
        raise _wire.nonsense(f"an answer for {len(reply.system)} systems, expected {system.count}")
    return Made(reply, [one.handle for one in reply.system], answer.route or route,
                system.padding_logdet)


def raise_first(failures: "dict[int, errors.BlockdError]") -> None:
    first = failures[min(failures)]
    first.failures = failures
    raise first


@dataclass(frozen=True)
class Factored:
    held: Held
    made: Made


def factor(core: Core, system: System, options: FactorOptions, lower: bool,
           partial: bool) -> Operation[Factored]:
    deadline = core.deadline(options.timeout)
    made = yield from factor_systems(core, system, options, [], "", deadline)
    failures = made.failures()
    if failures and (not partial or len(failures) == system.count):
        yield from release_names(core, Names(made.handles, made.route, 0))
        raise_first(failures)
    held = Held(Shape.of(system), made.handles, made.route)
    if options.heal:
        held.healer = Healer(core, held, options, system, lower, factor_systems)
    return Factored(held, made)


def refactor(core: Core, held: Held, system: System, options: FactorOptions) -> Operation[Made]:
    if Shape.of(system) != held.shape:
        ours, other = held.shape, Shape.of(system)
        raise errors.invalid("D, E" if ours.arrow_size == other.arrow_size else "border",
                             f"of K, N, n, p, dtype, padding = {_describe(other)}",
                             f"those of the handle: {_describe(ours)}")
    deadline = core.deadline(options.timeout)
    while True:
        seen: list[Names] = []

        def call(names: Names) -> Operation[Made]:
            seen[:] = [names]
            if not all(names.handles):
                raise errors.make(grpc.StatusCode.FAILED_PRECONDITION,
                                  "some systems of the batch failed; factor them anew")
            made = yield from factor_systems(core, system, options, names.handles, names.route,
                                             deadline)
            return made

        made = yield from on_held(core, held, deadline, call)
        failures = made.failures()
        if failures:
            raise_first(failures)
        if held.healer is None or held.healer.refactored(seen[0], system, options):
            return made


def _describe(shape: Shape) -> str:
    return ", ".join(map(str, (shape.systems, shape.num_blocks, shape.block_size, shape.arrow_size,
                               shape.dtype.name, shape.padding)))
