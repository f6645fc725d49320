"""The blocking client: `connect`, `Client` and `Handle`. `blockd.aio` has its asyncio twins."""

from __future__ import annotations

import os
from typing import Any, Iterable, Optional, Union

import numpy as np
import numpy.typing as npt

from blockd import _channel, errors, results
from blockd._arrays import System
from blockd._calls import Core, Unique
from blockd._operations import factor as _factor, inverse as _inverse, others
from blockd._operations import smooth as _smooth, solve as _solve
from blockd._operations.factorization import Factorization
from blockd._operations.held import Held
from blockd._operations.model import Model
from blockd._options import (ConnectOptions, FactorOptions, Matrix, Retry, SmoothOptions,
                             SolveOptions, Tls)
from blockd._operations.release import Releases
from blockd._sync import Runner
from blockd.session import Session

DEFAULT_TARGET = "127.0.0.1:7117"


def connect_options(target: Optional[str], tls: "Union[bool, Tls]", token: Optional[str],
                    caller: Optional[str], timeout: float, retry: Optional[Retry],
                    stream_threshold_bytes: int, chunk_bytes: int) -> ConnectOptions:
    """What both clients make of the arguments of connect()."""
    if target is None:
        target = os.environ.get("BLOCKD_SERVER") or DEFAULT_TARGET
    _channel.keep_freed_memory()
    security = (Tls() if tls else None) if isinstance(tls, bool) else tls
    return ConnectOptions(target, security, token,
                          caller or os.environ.get("BLOCKD_CALLER") or None, timeout,
                          retry or Retry(), stream_threshold_bytes, chunk_bytes)


def connect(target: Optional[str] = None, *, tls: "Union[bool, Tls]" = False,
            token: Optional[str] = None, caller: Optional[str] = None, timeout: float = 60.0,
            retry: Optional[Retry] = None, stream_threshold_bytes: int = 4 << 20,
            chunk_bytes: int = 1 << 20) -> "Client":
    """A client of the server at `target`. Does not wait for it; the first call does.

    Args:
        target: "host:port", "[IPv6 address]:port" or "unix:/path"; default $BLOCKD_SERVER, else
            "127.0.0.1:7117". Through the HTTP proxy that $grpc_proxy, $https_proxy or $http_proxy names,
            but for a target on this host and what $no_grpc_proxy or $no_proxy exempts.
        tls: True for the system's certificates, or a `Tls`. Default: plain text.
        token: a secret that says who asks. Needs TLS, but for a target on this host.
        caller: the name that the handles belong to, where the server trusts it; default
            $BLOCKD_CALLER.
        timeout: seconds for calls that name none; retries, uploads and waiting count. Infinity: none.
        retry: when a call is tried again.
        stream_threshold_bytes: what is larger travels as a stream of chunks, on a connection of its
            own.
        chunk_bytes: of each chunk. Both must stay below the server's `max_message_bytes`.

    Raises:
        ConfigurationError: the target is none.
        InvalidArgument: another argument is wrong, or the token would leave this host in plain text.
    """
    return Client(connect_options(target, tls, token, caller, timeout, retry,
                                  stream_threshold_bytes, chunk_bytes))


class Client(Unique):
    """Calls to one server. Thread-safe. Made by `connect`; close it, or use it in a `with`."""

    _instead = "it owns connections. Threads share the object itself; another process connects anew"

    def __init__(self, options: ConnectOptions) -> None:
        self._core = Core(options)
        self._runner = Runner(self._core)
        self._run = self._runner.run
        runner = self._runner
        self._releases = Releases(self._core, lambda: runner)
        self._releases.serve(self)
        self._kept: _smooth.Kept[Handle] = _smooth.Kept()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the handles that are left, but for those that were detached, and ends the connections.

        Waits for that 5 seconds at most. What is not reached by then falls to expiry and eviction.
        """
        self._releases.close()
        self._runner.close()

    def factor(self, D: Any, E: Any = None, *, border: Any = None, corner: Any = None,
               lower: bool = True, check_symmetric: bool = False, check_finite: bool = True,
               keep_matrix: bool = False, logdet: bool = False, condition_estimate: bool = False,
               accuracy: str = "standard", pin: bool = False, lease: Optional[float] = None,
               priority: str = "interactive", idempotency_key: Optional[bytes] = None,
               heal: "Union[bool, Matrix]" = False, partial: bool = False,
               timeout: Optional[float] = None) -> "Handle":
        """Factors A, or a batch of K of one shape, and keeps it on the server.

        Args:
            D: diagonal blocks A(i, i), (N, n, n), or (K, N, n, n). Any real dtype, order, strides
                and byte order, and DLPack; float32 is factored in float32 (if E is float32 too),
                everything else in float64.
            E: couplings E[i] = A(i+1, i), (N-1, n, n), or (K, N-1, n, n). May be left out if N = 1.
            border, corner: p >= 1 dense rows that come last, (p, N n) or (p, N, n), and the p x p
                beside them, of which one triangle is read as of D; of a batch with K in front. A is
                of order N n + p then, and keeps no matrix: no `keep_matrix`, `condition_estimate` or
                `accuracy="guaranteed"`.
            lower: read the lower triangles of D, else the upper ones. The other is not looked at.
                With C order the upper one travels without being transposed.
            check_symmetric: refuse a D or a corner whose triangles differ. Costs a pass over them.
            check_finite: refuse NaN and infinities, with their place.
            keep_matrix: keep A too, for residuals and refinement.
            logdet: compute log det A: `Handle.logdet`.
            condition_estimate: estimate the condition number: `Handle.condition_estimate`.
            accuracy: "standard" or "guaranteed": a backward error of 4 n eps, at the price of the
                matrix where that needs it.
            pin: never evicted, never expired.
            lease: seconds after its last use in which it is not evicted.
            priority: "realtime", "interactive" or "bulk".
            idempotency_key: a name for the content: a Factor whose key the server knows returns what
                it has. Default: a random one, for the retries of this call.
            heal: factor again when the server has lost it. True: from a copy that the handle keeps.
                Or a function without arguments that returns (D, E), or (D, E, border, corner).
            partial: of a batch, keep the systems that succeeded: `Handle.failures`.
            timeout: seconds.

        Raises:
            InvalidArgument: shapes do not agree, or something is not finite (also a ValueError).
            TypeError: numbers cannot be read from it without loss: complex, objects, masked values.
            NotPositiveDefinite: with system, block, row and minor; the border is block N. Of a batch:
                the first one, and `failures` has all; nothing is kept.
            InsufficientMemory, QuotaExceeded, LimitExceeded, Unavailable, DeadlineExceeded.
        """
        options = FactorOptions(keep_matrix, check_finite, pin, logdet, condition_estimate, accuracy,
                                priority, lease, False, idempotency_key, heal, timeout)
        system = System(D, E, lower, check_symmetric, border, corner)
        factored = self._run(_factor.factor(self._core, system, options, lower, partial))
        return Handle(self, factored.held, factored.made)

    def factor_solve(self, D: Any, E: Any, b: Any, *, border: Any = None, corner: Any = None,
                     lower: bool = True, check_symmetric: bool = False, check_finite: bool = True,
                     residual: bool = False, max_refinements: int = 0, logdet: bool = False,
                     accuracy: str = "standard", priority: str = "interactive",
                     timeout: Optional[float] = None) -> results.Solution:
        """Factors one system, solves, and keeps nothing. Arguments and errors as of factor and solve.

        With a border there is no `residual` and no `max_refinements`.
        """
        options = FactorOptions(check_finite=check_finite, logdet=logdet, accuracy=accuracy,
                                priority=priority, timeout=timeout)
        solving = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
        system = System(D, E, lower, check_symmetric, border, corner)
        return self._run(others.factor_solve(self._core, system, b, options, solving))

    def smooth(self, *, F: Any, Q: Any, H: Any, R: Any, y: Any, c: Any = None, d: Any = None,
              m0: Any = None, P0: Any = None, diffuse: Any = None,
              covariances: Optional[str] = "full", lag_one: bool = False, residuals: bool = False,
              log_likelihood: bool = True, num_samples: int = 0, seed: int = 0,
              keep: bool = False, lease: Optional[float] = None, form: Optional[str] = None,
              outputs: "Iterable[str]" = (), forecast: int = 0, priority: str = "interactive",
              timeout: Optional[float] = None) -> "results.Smoothed[Handle]":
        """Means, covariances and samples of the states of a linear Gaussian model, given all of y.

            x(1) ~ N(m0, P0);  x(t+1) = F x(t) + c + w, w ~ N(0, Q);  y(t) = H x(t) + d + v, v ~ N(0, R)

        Args:
            F, Q: (nx, nx), or one for each step but the last: (T-1, nx, nx). Of T matrices, as
                statsmodels has them, the last one is left out.
            H, R: (ny, nx) and (ny, ny), or one for each step, with T in front.
            y: (T, ny), or (T,) where ny = 1; (K, T, ny) of K series with one model; a pandas Series
                or DataFrame. NaN, and what is masked in a masked array, is missing.
            c, d: (nx,) and (ny,), or with T-1 and T in front. Default: 0.
            m0, P0: (nx,) and (nx, nx). Neither: any x(1) is as likely as any other (diffuse).
            diffuse: with m0 and P0, a mask of the states of whose x(1) nothing is known, for which
                P0 does not count; or directions, (nx, q), in which that is so.
            covariances: "full", "diagonal" or None.
            lag_one: also Cov(x(t+1), x(t)).
            residuals: also y - H x - d, each over its standard deviation.
            log_likelihood: also log p(y).
            num_samples: also so many samples of the states given y, of each series, by `seed`.
            keep: keep the factorizations: `Smoothed.handles`. The next smoothing with `keep` of the
                same model, with the same elements missing, finds them, and only solves.
            lease: seconds after its last use in which a kept one is not evicted.
            form: "information", "orthogonal" or "double-double" (orthogonal, in that arithmetic): only
                this one, or an error where its numbers are not good enough. Default: the first of
                them that is, for each set of missing elements: `Smoothed.form`.
            outputs: further results, all in orthogonal form, as `Smoothed.outputs` has them by name:
                "filtered_means", "filtered_covariances": of x(t) given y(1), ..., y(t).
                "predicted_means", "predicted_covariances": given y(1), ..., y(t-1). Where nothing is
                    known yet of a diffuse state: NaN, and a variance of inf.
                "innovations": standardized one-step-ahead residuals, by Cholesky in y's order.
                "log_likelihood_steps": log p(y(t) | y(1), ..., y(t-1)), whose sum is log_likelihood.
                "observation_means", "observation_covariances": of a new H x + d + v, given all of y:
                    forecasts, and what is missing.
                "state_disturbances", "observation_disturbances": means of w and v, and over their
                    own deviations "standardized_state_disturbances" and
                    "standardized_observation_disturbances", whose large ones are breaks and outliers.
                "score_transition", "score_transition_covariance", "score_observation",
                    "score_observation_covariance", "score_transition_offset",
                    "score_observation_offset", "score_initial_mean", "score_initial_covariance": the
                    gradient of log_likelihood with respect to F, Q, H, R, c, d, m0 and P0, in their
                    shapes as matrices: one, or one for each step.
            forecast: so many steps more, without observations, of which all results have rows too.
                Arrays with one matrix for each step have them for these.
            priority, timeout: as of `factor`.

        Numbers stand for 1 x 1 matrices, and axes of length 1 may be left out: R of shape (T,) is
        one variance a step. Any real dtype, order and strides, and DLPack; the answer is float64. Q,
        R and P0 may be singular or zero; they are symmetric but for rounding.

        Raises:
            SingularCovariance: Q, R or P0 is not positive semidefinite; or not positive definite,
                with `keep` or in information form.
            NotSmoothable: y says too little of a diffuse model, contradicts it, or no arithmetic is
                accurate enough; with the reason.
            InvalidArgument: shapes do not agree, something else than y is not finite, or Q, R or P0
                is not symmetric.
            NotPositiveDefinite: there is no information form, with `keep` or where it was asked for.
            TypeError: numbers cannot be read without loss.
            InsufficientMemory, QuotaExceeded, LimitExceeded, Unavailable, DeadlineExceeded.
        """
        model = Model(F, Q, H, R, y, c, d, m0, P0, diffuse, forecast)
        options = SmoothOptions(covariances, lag_one, residuals, log_likelihood, num_samples, seed,
                                keep, lease, form, outputs, priority, timeout)
        self._runner.check_open()
        if keep:  # nothing is found that is released meanwhile
            self._releases.flush(self._core.limit(timeout))
        answer = self._run(_smooth.smooth(self._core, model, options))
        handles = self._kept.handles(model, answer, lambda held: Handle(self, held))
        return _smooth.result(model, options, answer, handles)

    def session(self, *, max_outstanding: int = 1024) -> Session:
        """A stream that keeps many solves in flight: see `Session`."""
        self._runner.check_open()
        return Session(self._core, self._runner, max_outstanding)

    def adopt(self, handle: bytes, route: str = "", *, padding: int = 0) -> "Handle":
        """A `Handle` for a name that this caller has from elsewhere, as `list` or `Handle.ids`.

        It then belongs to the handle, which releases it; among several handles of one client that have
        it, the last one that Python forgets. `padding`: that of the handle that it had, as the server
        does not know which rows are padding. HandleNotFound if it is not held.
        """
        return Handle(self, self._run(others.adopt(self._core, handle, route, padding)))

    def list(self) -> "list[results.FactorizationInfo]":
        """The caller's factorizations. Behind a router: those of one server."""
        return self._run(others.list_factorizations(self._core))

    def info(self) -> results.ServerInfo:
        """What the server is, has and allows."""
        return self._run(others.server_info(self._core))

    def plan(self, num_blocks: int, block_size: int, *, arrow_size: int = 0,
             dtype: npt.DTypeLike = np.float64, num_systems: int = 1,
             num_rhs: int = 1) -> results.Plan:
        """How the server would factor and solve such a shape, and what that takes. Nothing is run."""
        return self._run(others.plan(self._core, num_blocks, block_size, arrow_size, dtype,
                                          num_systems, num_rhs))

    def check_health(self) -> None:
        """Raises Unavailable unless the server is there and serves."""
        self._run(others.check_health(self._core))

    def wait_until_serving(self, timeout: float = 30.0) -> None:
        """Waits for a server that is about to start. Raises Unavailable after `timeout` seconds."""
        self._run(others.wait_until_serving(self._core, timeout))


class Handle(Factorization):
    """The factorization of A, or of a batch of K of them, on the server. Thread-safe.

    It is released at the end of its `with`, by `release`, soon after Python has forgotten it, and with
    the last of them when its client is closed or the process ends. `detach` leaves it on the server.
    """

    def __init__(self, client: Client, held: Held, made: Optional[_factor.Made] = None) -> None:
        self._client = client
        self._run = client._run
        super().__init__(held, client._releases, made)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except errors.BlockdError:
            pass  # it falls to expiry and eviction

    def solve(self, b: Any, *, residual: bool = False, max_refinements: int = 0,
              check_finite: bool = True, priority: str = "interactive",
              timeout: Optional[float] = None) -> npt.NDArray[Any]:
        """The solution of A x = b, in the shape of `b` and the dtype of A.

        Args:
            b: (N n,), (N n, d), (N, n) or (N, n, d); with a border (N n + p,) or (N n + p, d), its rows
                last; of padded blocks the rows of A, (rows,) or (rows, d); of a batch with K before
                that. Any real dtype, order and strides, and DLPack.
            residual, max_refinements: see `solve_with_info`.
            check_finite: refuse NaN and infinities in `b`, with their place.
            priority: "realtime" (needs a timeout), "interactive" or "bulk".
            timeout: seconds.

        Returns:
            An array of its own, in Fortran order where d > 1. Of systems that failed: NaN.

        Raises:
            InvalidArgument: the shape is another, or `b` is not finite (also a ValueError).
            HandleNotFound: the server has lost it, with the reason; not if it heals.
            FailedPrecondition: a residual or refinement without `keep_matrix`.
            Unavailable, DeadlineExceeded, ResourceExhausted.
        """
        options = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
        return self._run(_solve.solve(self._client._core, self._held, b, options))

    def solve_with_info(self, b: Any, *, residual: bool = False, max_refinements: int = 0,
                        check_finite: bool = True, priority: str = "interactive",
                        timeout: Optional[float] = None) -> results.Solution:
        """As `solve`, with what the answer says of its error and its cost.

        `residual`: measure the backward error. `max_refinements`: at most so many steps, up to 10; 0:
        as many as the growth asks for. Both need `keep_matrix`.
        """
        options = SolveOptions(residual, max_refinements, check_finite, priority, timeout)
        return self._run(_solve.solve_with_info(self._client._core, self._held, b, options))

    def refactor(self, D: Any, E: Any = None, *, border: Any = None, corner: Any = None,
                 lower: bool = True, check_symmetric: bool = False, check_finite: bool = True,
                 keep_matrix: bool = False, logdet: bool = False, condition_estimate: bool = False,
                 accuracy: str = "standard", pin: bool = False, lease: Optional[float] = None,
                 priority: str = "interactive", overwrite: bool = False,
                 timeout: Optional[float] = None) -> None:
        """Gives the handle new values, of the same shape and dtype. Arguments as of `Client.factor`.

        A border has as many rows as the handle's. A system that is not positive definite leaves its
        old factorization in force. `overwrite`: use the old factors' memory; a system that fails then
        loses its handle.
        """
        options = FactorOptions(keep_matrix, check_finite, pin, logdet, condition_estimate, accuracy,
                                priority, lease, overwrite, None, False, timeout)
        system = System(D, E, lower, check_symmetric, border, corner)
        self._note(self._run(_factor.refactor(self._client._core, self._held, system, options)))

    def selected_inverse(self, parts: str = "blocks", *, first: int = 0,
                         count: Optional[int] = None, border: bool = False,
                         priority: str = "interactive", timeout: Optional[float] = None) -> Any:
        """Blocks of Z = inv(A), the covariance of N(0, inv(A)), in the dtype of A.

        Args:
            parts: "blocks": Z(i, i), (N, n, n). "diagonal": the marginal variances alone, (N, n).
                "tridiagonal": a `Tridiagonal` of Z(i, i), (N, n, n), and Z(i+1, i), (N-1, n, n).
            first, count: of `count` blocks i from `first` on alone; N above is `count` then. None:
                all that follow.
            border: also what Z has in the columns of the border: an `Arrowhead` of that which `parts`
                names, of (N, n, p) beside these blocks, and of the p x p of the border.
            priority, timeout: as of `solve`.

        Of padded blocks the variances are (rows,), and blocks have zeros in the place of the padding.
        Of a batch K is in front, and systems that failed have NaN. An element z(i, j) is off by at
        most 4 max(n, 2) eps max(1, growth / 4) u(i) u(j), where u(i) = sum |z(i, k)| sqrt(a(k, k)); with a
        border n + p stands for n. Errors as of `solve`.
        """
        return self._run(_inverse.selected_inverse(self._client._core, self._held, parts, first,
                                                   count, border, priority, timeout))

    def sample(self, num_samples: int = 1, *, seed: int = 0, first_sample: int = 0,
               priority: str = "interactive", timeout: Optional[float] = None) -> npt.NDArray[Any]:
        """Samples of N(0, inv(A)): (num_samples, N, n), in the dtype of A.

        With a border they are (num_samples, N n + p), its rows last; of padded blocks as many less.

        Args:
            num_samples: at most the server's `max_rhs`.
            seed, first_sample: sample s of a seed is the same whatever others are drawn with it;
                these are the samples from `first_sample` on. Of a batch, whose K is in front, system
                k has those from `first_sample + k * num_samples` on.
            priority, timeout: as of `solve`.

        Errors as of `solve`.
        """
        return self._run(_inverse.sample(self._client._core, self._held, num_samples, seed,
                                         first_sample, priority, timeout))

    def info(self, system: int = 0) -> results.FactorizationInfo:
        """What the server says of it; `system` is an index in a batch."""
        return self._run(others.get_held(self._client._core, self._held, system))

    def release(self) -> int:
        """Gives it back. Returns its bytes; 0 if the server did not hold it any more."""
        return self._run(others.release(
            self._client._core, self._releases.disown(self._held)))

    def linear_operator(self) -> Any:
        """The inverse of A as a `scipy.sparse.linalg.LinearOperator`: a preconditioner.

        Its products are solves with `check_finite=False`. Needs scipy. Not of a batch.
        """
        from blockd.sparse import inverse_operator
        return inverse_operator(self)
