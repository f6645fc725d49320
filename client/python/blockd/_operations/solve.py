"""Solves: of one system, of large right-hand sides, of a batch. Internal; see _calls.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

import numpy as np

from blockd import _wire, errors, results
from blockd._arrays import Array, Rhs, empty_like, rhs
from blockd._calls import SOLVER, Core, Effect, Exchange, Operation, left, retry
from blockd._operations.factor import raise_first
from blockd._operations.held import Held, Names, on_held, unary_on
from blockd._options import SolveOptions
from blockd.v1 import blockd_pb2 as pb


@dataclass(frozen=True)
class Solved:
    """A solution, laid out as the right-hand sides are, and the rest of its answer: bytes."""

    data: Array
    rest: bytes


def solve(core: Core, held: Held, b: Any, options: SolveOptions) -> Operation[Array]:
    sides = rhs(b, held.shape)
    if sides.data.size == 0:
        return sides.solution(empty_like(sides.data))
    if held.shape.batched:
        data, _ = yield from _solve_batch(core, held, sides, options)
        return sides.solution(data)
    solved = yield from _solve_one(core, held, sides.data[0], options)
    return sides.solution(solved.data[np.newaxis])


def solve_with_info(core: Core, held: Held, b: Any,
                    options: SolveOptions) -> Operation[results.Solution]:
    sides = rhs(b, held.shape)
    if sides.data.size == 0:
        raise errors.invalid("b", f"of shape {sides.shape}", "at least one column")
    if held.shape.batched:
        data, replies = yield from _solve_batch(core, held, sides, options)
        return _combine(sides.solution(data), replies)
    solved = yield from _solve_one(core, held, sides.data[0], options)
    reply = _wire.parse(pb.SolveReply, solved.rest)
    return results.Solution(
        sides.solution(solved.data[np.newaxis]), _wire.backward_error(reply),
        reply.backward_error_bound, reply.refinements, results.cost(reply.cost))


def _combine(x: Array, replies: "list[Any]") -> results.Solution:
    """Of many solves: the largest errors; the costs add up but for the longest wait."""
    measured = [value for reply in replies for value in _each(reply, "backward_error") if value >= 0]
    bounds = [value for reply in replies for value in _each(reply, "backward_error_bound")]
    steps = [value for reply in replies for value in _each(reply, "refinements")]
    costs = [reply.cost for reply in replies]
    total = results.Cost(
        max(one.queue_seconds for one in costs), sum(one.batch_requests for one in costs),
        sum(one.batch_items for one in costs), sum(one.upload_seconds for one in costs),
        sum(one.compute_seconds for one in costs), sum(one.download_seconds for one in costs))
    return results.Solution(x, max(measured) if measured else None, max(bounds), max(steps, default=0),
                            total)


def _each(reply: Any, name: str) -> "Sequence[Any]":
    value = getattr(reply, name)
    if isinstance(reply, pb.SolveManyReply):
        return list(value)
    if name == "backward_error" and not reply.HasField(name):
        return ()
    return (value,)


def _solve_one(core: Core, held: Held, data: Array, options: SolveOptions) -> Operation[Solved]:
    deadline = core.deadline(options.timeout)

    def call(names: Names) -> Operation[Solved]:
        return _solve_system(core, held, names, 0, data, options, deadline)

    return (yield from on_held(core, held, deadline, call))


def _solve_system(core: Core, held: Held, names: Names, system: int, data: Array,
                  options: SolveOptions, deadline: float) -> Operation[Solved]:
    """With one of the handles; `data` is (d, N n + p)."""
    handle, heals = names.handles[system], held.healer is not None
    if data.nbytes > core.options.stream_threshold_bytes:
        return (yield from _solve_large(core, names.route, handle, data, options, deadline, heals))
    request = _wire.solve_request(handle, data, options.encoded)
    answer = yield from unary_on(core, names, deadline, "Solve", request, heals)
    place, rest = _wire.split(answer.data, 1)
    return Solved(_wire.solution_in(answer.data, place, data), rest)


def solve_again(core: Core, held: Held, seen: Names, sides: Rhs, options: SolveOptions,
                deadline: Optional[float], why: errors.BlockdError) -> Operation[Array]:
    """A solve of a session that found `seen` lost: restores it, and solves with a call of its own."""
    until = core.deadline(None) if deadline is None else deadline
    assert held.healer is not None
    yield from held.healer.restore(seen, why, until)
    rest = SolveOptions(options.residual, options.max_refinements, options.check_finite,
                        options.priority, left(until))
    return (yield from solve(core, held, sides.caller_array(), rest))


class _LargeAnswer:
    """Of the one request of a stream: its solution comes in chunks."""

    def __init__(self, like: Array) -> None:
        self._solution = empty_like(like)
        self._bytes = self._solution.data.cast("B")
        self._received = 0
        self._rest: Optional[bytes] = None

    def receive(self, data: bytes) -> bool:
        """True where that was the last message. Raises what the answer says went wrong."""
        reply = _wire.stream_reply(data)
        if reply.part == "status":
            raise errors.from_status(reply.message.status)
        if reply.part not in ("reply", "chunk") or (reply.part == "chunk") != (self._rest is not None):
            raise _wire.nonsense("a part that was not expected")
        start, end = reply.place
        if self._received + end - start > len(self._bytes):
            raise _wire.nonsense("more bytes than the solution has")
        self._bytes[self._received:self._received + end - start] = memoryview(data)[start:end]
        self._received += end - start
        if reply.part == "reply":
            self._rest = reply.answer.SerializeToString()
        return self._received == len(self._bytes)

    def result(self) -> Solved:
        return Solved(self._solution, self._rest or b"")


def _solve_large(core: Core, route: str, handle: bytes, data: Array, options: SolveOptions,
                 deadline: float, heals: bool) -> Operation[Solved]:
    answers: list[_LargeAnswer] = []

    def messages() -> Any:
        header = _wire.solve_pieces(handle, data, options.encoded, header=True)
        yield _wire.stream_message(b"\x08\x01", 2, header)
        yield from _wire.rhs_chunks(1, data, core.options.chunk_bytes)

    def call(seconds: float) -> Effect:
        answers[:] = [_LargeAnswer(data)]
        return Exchange(SOLVER + "SolveStream", messages, answers[0].receive, seconds, route)

    yield from retry(core, deadline, call, heals)
    return answers[0].result()


# --- Batches ----------------------------------------------------------------------------------------


def _solve_batch(core: Core, held: Held, sides: Rhs,
                 options: SolveOptions) -> "Operation[tuple[Array, list[Any]]]":
    deadline = core.deadline(options.timeout)

    def call(names: Names) -> "Operation[tuple[Array, list[Any]]]":
        solution = np.full(sides.data.shape, np.nan, sides.data.dtype)
        failures: dict[int, errors.BlockdError] = {}
        replies: list[Any] = []
        ready = [k for k, handle in enumerate(names.handles) if handle]
        for group in _groups(ready, sides.data[0].nbytes, core.options.stream_threshold_bytes):
            if sides.data[0].nbytes > core.options.stream_threshold_bytes:
                solved = yield from _solve_system(core, held, names, group[0],
                                                  sides.data[group[0]], options, deadline)
                solution[group[0]] = solved.data
                replies.append(_wire.parse(pb.SolveReply, solved.rest))
                continue
            reply = yield from _solve_group(core, held, names, group, sides, options, deadline,
                                            solution)
            replies.append(reply)
            for failure in reply.failure:
                failures[group[failure.solve]] = errors.from_status(failure.status)
        if failures:
            raise_first(failures)
        return solution, replies

    return (yield from on_held(core, held, deadline, call))


def _groups(systems: "list[int]", nbytes: int, limit: int) -> "list[list[int]]":
    together = max(1, min(limit // nbytes, _wire.MAX_SOLVES))
    return [systems[i:i + together] for i in range(0, len(systems), together)]


def _solve_group(core: Core, held: Held, names: Names, group: "list[int]", sides: Rhs,
                 options: SolveOptions, deadline: float, solution: Array) -> Operation[Any]:
    """Many systems in one message. Their solutions go to `solution`."""
    data = sides.data[group]
    fields = pb.SolveManyRequest(handles=b"".join(names.handles[k] for k in group),
                                 num_rhs=[sides.columns] * len(group))
    request = b"".join(_wire.solve_many_pieces(fields, options.encoded, [data]))
    answer = yield from unary_on(core, names, deadline, "SolveMany", request,
                                 held.healer is not None)
    place, rest = _wire.split(answer.data, 1)
    solution[group] = _wire.solution_in(answer.data, place, data)
    return _wire.parse(pb.SolveManyReply, rest)
