"""A factorization on the server: its name now, and how it comes back when it is lost. Internal.

One that heals is factored again once for all calls that wait for it. Its values are a copy of the
client's own, renewed by every refactor, or what the caller's function returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Callable, Optional

import grpc

from blockd import errors
from blockd._arrays import Shape, System
from blockd._calls import Core, Join, Operation, Slot, T, Unary, left, retry, SOLVER
from blockd._options import FactorOptions
from blockd.v1 import blockd_pb2 as pb

MAX_RESTORES = 8
WINDOW_SECONDS = 60.0


class Names:
    """What stands for the factorization at one time. Never changed; a new one takes its place."""

    def __init__(self, handles: "list[bytes]", route: str, generation: int) -> None:
        self.handles = handles  # one a system; empty bytes where it failed
        self.route = route
        self.generation = generation


class Held:
    """Thread-safe."""

    def __init__(self, shape: Shape, handles: "list[bytes]", route: str) -> None:
        self.shape = shape
        self.names = Names(handles, route, 0)
        self.healer: Optional[Healer] = None
        self.released = False

    def take(self) -> Optional[Names]:
        """What is to be released, once."""
        if self.released:
            return None
        self.released = True
        return self.names

    def check_open(self) -> None:
        if self.released:
            raise errors.make(
                grpc.StatusCode.NOT_FOUND, "the handle was released",
                (pb.HandleNotFound(reason=pb.HandleNotFound.RELEASED,
                                   handle=self.names.handles[0]),))


Factor = Callable[[Core, System, FactorOptions, "list[bytes]", str, float], Operation[Any]]


class Healer:
    """Restores one Held."""

    def __init__(self, core: Core, held: Held, options: FactorOptions, system: System, lower: bool,
                 factor: Factor) -> None:
        self._core = core
        self._held = held
        self._factor = factor
        self._timeout = options.timeout
        self._source = options.heal if callable(options.heal) else None
        self._lower = lower
        self._copy = None if self._source else system.copy()
        self._options = FactorOptions(
            keep_matrix=options.keep_matrix, check_finite=options.check_finite, pin=options.pin,
            accuracy=options.accuracy, priority=options.priority, lease=options.lease)
        self._version = 0  # of the values
        self._started: deque[float] = deque()
        self._lock = threading.Lock()
        self.slot = Slot()
        self.restores = 0

    def refactored(self, seen: Names, system: System, options: FactorOptions) -> bool:
        """A refactor of `seen` has succeeded. False if a restoration replaced `seen` meanwhile."""
        with self._lock:
            if self._held.names is not seen:
                return False
            self._version += 1
            if self._source is None:
                self._copy = system.copy()
            self._options.keep_matrix = options.keep_matrix
            self._options.accuracy = options.accuracy
            self._options.check_finite = options.check_finite
            self._options.pin = self._options.pin or options.pin
            self._options.lease = options.lease or self._options.lease
            return True

    def mends(self, seen: Names, error: errors.BlockdError) -> bool:
        if self._held.released:
            return False
        return errors.is_lost(error) or (isinstance(error, errors.HandleNotFound)
                                         and self._held.names is not seen)

    def restore(self, seen: Names, why: errors.BlockdError, deadline: float) -> Operation[None]:
        """Until there is another than `seen`. Raises what went wrong, or DeadlineExceeded."""
        if self._held.names is seen:
            yield Join(self.slot, lambda: self._run(seen, why), left(deadline))

    def _admit(self, why: errors.BlockdError) -> None:
        now = time.monotonic()
        while self._started and self._started[0] <= now - WINDOW_SECONDS:
            self._started.popleft()
        if len(self._started) >= MAX_RESTORES:
            raise errors.make(why.code, f"{why.message} (not factored again: that was tried "
                              f"{MAX_RESTORES} times within a minute)", why.details)
        self._started.append(now)

    def _values(self) -> System:
        if self._copy is not None:
            return self._copy
        assert self._source is not None
        values = tuple(self._source())
        if len(values) not in (2, 4):
            raise errors.invalid("heal", f"{len(values)} arrays", "(D, E), or (D, E, border, corner)")
        diagonal, coupling, *bordering = values
        system = System(diagonal, coupling, self._lower, False, *bordering)
        if Shape.of(system) != self._held.shape:
            raise errors.invalid("heal", "a matrix of another shape or dtype",
                                 "that of the handle")
        return system

    def _run(self, seen: Names, why: errors.BlockdError) -> Operation[None]:
        if self._held.names is not seen:
            return
        self._admit(why)
        while True:
            version = self._version
            try:
                made = yield from self._factor(self._core, self._values(), self._options, [], "",
                                               self._core.deadline(self._timeout))
                for one, before in zip(made.reply.system, seen.handles):
                    if one.status.code != 0 and before:
                        yield from release_names(self._core, Names(made.handles, made.route, 0))
                        raise errors.from_status(one.status)
            except errors.BlockdError as error:
                if errors.is_gone(error) or isinstance(error, errors.ServerDraining):
                    self._started.pop()  # no server was there to be spared
                raise errors.make(error.code, f"factoring again failed: {error.message} (it was "
                                  f"lost: {why.message})", error.details) from error
            names = Names(made.handles, made.route, seen.generation + 1)
            with self._lock:
                current = version == self._version and not self._held.released
                if current:
                    self._held.names = names
                    self.restores += 1
            if current:
                if not isinstance(why, errors.HandleNotFound) or why.reason == "OTHER_SERVER":
                    yield from release_names(self._core, seen)  # it may still be held
                return
            yield from release_names(self._core, names)  # yesterday's values, or nobody's
            if self._held.released:
                raise why


def release_names(core: Core, names: Names) -> Operation[None]:
    """Once, without complaint: what is not reached falls to lease, expiry and eviction."""
    handles = [handle for handle in names.handles if handle]
    if not handles:
        return
    request = pb.ReleaseRequest(handle=handles).SerializeToString()
    try:
        yield Unary(SOLVER + "Release", request, 10.0, names.route)
    except errors.BlockdError:
        pass


def on_held(core: Core, held: Held, deadline: float,
            call: Callable[[Names], Operation[T]]) -> Operation[T]:
    """Calls with what the factorization stands for now, and again after each restoration."""
    while True:
        held.check_open()
        seen = held.names
        try:
            return (yield from call(seen))
        except errors.BlockdError as error:
            if held.healer is None or not held.healer.mends(seen, error):
                raise
            why = error
        yield from held.healer.restore(seen, why, deadline)


def unary_on(core: Core, names: Names, deadline: float, method: str, request: bytes,
             heals: bool) -> Operation[Any]:
    return retry(core, deadline,
                 lambda seconds: Unary(SOLVER + method, request, seconds, names.route), heals)
