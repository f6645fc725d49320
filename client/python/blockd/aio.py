"""The asyncio client: the calls of `blockd.connect` as coroutines.

    async with blockd.aio.connect() as client:
        async with await client.factor(D, E) as A:
            x = await A.solve(b)

Arguments, results and errors are those of `blockd.Client`, `blockd.Handle` and `blockd.Session`.
Everything of one client belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Iterable, Optional, Union

import numpy as np
import numpy.typing as npt

from blockd import errors, results
from blockd._aio_session import AsyncSession
from blockd._arrays import System
from blockd._asyncio import AsyncRunner
from blockd._calls import CLOSE_SECONDS, Core, Unique
from blockd._operations import factor as _factor, inverse as _inverse, others
from blockd._operations import smooth as _smooth, solve as _solve
from blockd._operations.factorization import Factorization
from blockd._operations.held import Held
from blockd._operations.model import Model
from blockd._options import (ConnectOptions, FactorOptions, Matrix, Retry, SmoothOptions,
                             SolveOptions, Tls)
from blockd._operations.release import BlockingRunner, Releases
from blockd.client import connect_options

__all__ = ["AsyncClient", "AsyncHandle", "AsyncSession", "connect"]


def connect(target: Optional[str] = None, *, tls: "Union[bool, Tls]" = False,
            token: Optional[str] = None, caller: Optional[str] = None, timeout: float = 60.0,
            retry: Optional[Retry] = None, stream_threshold_bytes: int = 4 << 20,
            chunk_bytes: int = 1 << 20) -> "AsyncClient":
    """As `blockd.connect`. To be called, and used, in one running event loop: else ConfigurationError."""
    return AsyncClient(connect_options(target, tls, token, caller, timeout, retry,
                                       stream_threshold_bytes, chunk_bytes))


class AsyncClient(Unique):
    """As `blockd.Client`."""

    _instead = "it owns connections. Tasks share the object itself; another event loop connects anew"

    def __init__(self, options: ConnectOptions) -> None:
        self._core = Core(options)
        self._runner = AsyncRunner(self._core)
        self._run = self._runner.run
        self._blocking = BlockingRunner(self._core)
        self._releases = Releases(self._core, self._blocking.get)
        self._releases.serve(self)
        self._kept: _smooth.Kept[AsyncHandle] = _smooth.Kept()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`."""
        until = time.monotonic() + CLOSE_SECONDS
        await asyncio.get_running_loop().run_in_executor(None, self._releases.close)
        self._blocking.close()
        await self._runner.close(max(0.0, until - time.monotonic()))

    async def factor(self, D: Any, E: Any = None, *, border: Any = None, corner: Any = None,
                     lower: bool = True, check_symmetric: bool = False, check_finite: bool = True,
                     keep_matrix: bool = False, logdet: bool = False,
                     condition_estimate: bool = False, accuracy: str = "standard",
                     pin: bool = False, lease: Optional[float] = None,
                     priority: str = "interactive", idempotency_key: Optional[bytes] = None,
                     heal: "Union[bool, Matrix]" = False, partial: bool = False,
                     timeout: Optional[float] = None) -> "AsyncHandle":
        """As `Client.factor`. A function given as `heal` is called in the event loop."""
        options = FactorOptions(keep_matrix, check_finite, pin, logdet, condition_estimate, accuracy,
                                priority, lease, False, idempotency_key, heal, timeout)
        system = System(D, E, lower, check_symmetric, border, corner)
        factored = await self._run(_factor.factor(self._core, system, options, lower, partial))
        return AsyncHandle(self, factored.held, factored.made)

    async def factor_solve(self, D: Any, E: Any, b: Any, *, border: Any = None, corner: Any = None,
                           lower: bool = True, check_symmetric: bool = False,
                           check_finite: bool = True, residual: bool = False,
                           max_refinements: int = 0, logdet: bool = False,
                           accuracy: str = "standard", priority: str = "interactive",
                           timeout: Optional[float] = None) -> results.Solution:
        """As `Client.factor_solve`."""
        options = FactorOptions(check_finite=check_finite, logdet=logdet, accuracy=accuracy,
                                priority=priority, timeout=timeout)
        solving = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
        system = System(D, E, lower, check_symmetric, border, corner)
        return await self._run(others.factor_solve(self._core, system, b, options, solving))

    async def smooth(self, *, F: Any, Q: Any, H: Any, R: Any, y: Any, c: Any = None, d: Any = None,
                    m0: Any = None, P0: Any = None, diffuse: Any = None,
                    covariances: Optional[str] = "full", lag_one: bool = False, residuals: bool = False,
                    log_likelihood: bool = True, num_samples: int = 0, seed: int = 0,
                    keep: bool = False, lease: Optional[float] = None, form: Optional[str] = None,
                    outputs: "Iterable[str]" = (), forecast: int = 0, priority: str = "interactive",
                    timeout: Optional[float] = None) -> "results.Smoothed[AsyncHandle]":
        """As `Client.smooth`."""
        model = Model(F, Q, H, R, y, c, d, m0, P0, diffuse, forecast)
        options = SmoothOptions(covariances, lag_one, residuals, log_likelihood, num_samples, seed,
                                keep, lease, form, outputs, priority, timeout)
        self._runner.check_open()
        if keep:  # nothing is found that is released meanwhile
            await asyncio.get_running_loop().run_in_executor(
                None, self._releases.flush, self._core.limit(timeout))
        answer = await self._run(_smooth.smooth(self._core, model, options))
        handles = self._kept.handles(model, answer, lambda held: AsyncHandle(self, held))
        return _smooth.result(model, options, answer, handles)

    def session(self, *, max_outstanding: int = 1024) -> AsyncSession:
        """As `Client.session`; for an `async with`."""
        self._runner.check_open()
        return AsyncSession(self._core, self._runner, max_outstanding)

    async def adopt(self, handle: bytes, route: str = "", *, padding: int = 0) -> "AsyncHandle":
        """As `Client.adopt`."""
        return AsyncHandle(self, await self._run(
            others.adopt(self._core, handle, route, padding)))

    async def list(self) -> "list[results.FactorizationInfo]":
        """As `Client.list`."""
        return await self._run(others.list_factorizations(self._core))

    async def info(self) -> results.ServerInfo:
        """As `Client.info`."""
        return await self._run(others.server_info(self._core))

    async def plan(self, num_blocks: int, block_size: int, *, arrow_size: int = 0,
                   dtype: npt.DTypeLike = np.float64, num_systems: int = 1,
                   num_rhs: int = 1) -> results.Plan:
        """As `Client.plan`."""
        return await self._run(others.plan(self._core, num_blocks, block_size, arrow_size,
                                                dtype, num_systems, num_rhs))

    async def check_health(self) -> None:
        """As `Client.check_health`."""
        await self._run(others.check_health(self._core))

    async def wait_until_serving(self, timeout: float = 30.0) -> None:
        """As `Client.wait_until_serving`."""
        await self._run(others.wait_until_serving(self._core, timeout))


class AsyncHandle(Factorization):
    """As `blockd.Handle`."""

    def __init__(self, client: AsyncClient, held: Held,
                 made: Optional[_factor.Made] = None) -> None:
        self._client = client
        self._run = client._run
        super().__init__(held, client._releases, made)

    async def __aenter__(self) -> "AsyncHandle":
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.release()
        except errors.BlockdError:
            pass  # it falls to expiry and eviction

    async def solve(self, b: Any, *, residual: bool = False, max_refinements: int = 0,
                    check_finite: bool = True, priority: str = "interactive",
                    timeout: Optional[float] = None) -> npt.NDArray[Any]:
        """As `Handle.solve`."""
        options = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
        return await self._run(_solve.solve(self._client._core, self._held, b, options))

    async def solve_with_info(self, b: Any, *, residual: bool = False, max_refinements: int = 0,
                              check_finite: bool = True, priority: str = "interactive",
                              timeout: Optional[float] = None) -> results.Solution:
        """As `Handle.solve_with_info`."""
        options = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
        return await self._run(
            _solve.solve_with_info(self._client._core, self._held, b, options))

    async def refactor(self, D: Any, E: Any = None, *, border: Any = None, corner: Any = None,
                       lower: bool = True, check_symmetric: bool = False, check_finite: bool = True,
                       keep_matrix: bool = False, logdet: bool = False,
                       condition_estimate: bool = False, accuracy: str = "standard",
                       pin: bool = False, lease: Optional[float] = None,
                       priority: str = "interactive", overwrite: bool = False,
                       timeout: Optional[float] = None) -> None:
        """As `Handle.refactor`."""
        options = FactorOptions(keep_matrix, check_finite, pin, logdet, condition_estimate, accuracy,
                                priority, lease, overwrite, None, False, timeout)
        system = System(D, E, lower, check_symmetric, border, corner)
        self._note(await self._run(
            _factor.refactor(self._client._core, self._held, system, options)))

    async def selected_inverse(self, parts: str = "blocks", *, first: int = 0,
                               count: Optional[int] = None, border: bool = False,
                               priority: str = "interactive",
                               timeout: Optional[float] = None) -> Any:
        """As `Handle.selected_inverse`."""
        return await self._run(_inverse.selected_inverse(self._client._core, self._held, parts, first,
                                                         count, border, priority, timeout))

    async def sample(self, num_samples: int = 1, *, seed: int = 0, first_sample: int = 0,
                     priority: str = "interactive",
                     timeout: Optional[float] = None) -> npt.NDArray[Any]:
        """As `Handle.sample`."""
        return await self._run(_inverse.sample(self._client._core, self._held, num_samples, seed,
                                               first_sample, priority, timeout))

    async def info(self, system: int = 0) -> results.FactorizationInfo:
        """As `Handle.info`."""
        return await self._run(others.get_held(self._client._core, self._held, system))

    async def release(self) -> int:
        """As `Handle.release`."""
        return await self._run(others.release(
            self._client._core, self._releases.disown(self._held)))
