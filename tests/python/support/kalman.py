"""Smoothing as textbooks have it: with one dense precision matrix, and with a filter and a backward pass."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np


class Smoothing(NamedTuple):
    means: Any  # (T, nx)
    covariances: Any  # (T, nx, nx)
    lag_one: Any  # Cov(x(t+1), x(t)), (T-1, nx, nx)
    log_likelihood: float


def model(T: int, nx: int, ny: int, seed: int = 0, each: bool = False) -> "dict[str, Any]":
    """The arguments of Client.smooth but y; `each`: other matrices at every step."""
    rng = np.random.default_rng(seed)

    def covariance(*shape: int) -> Any:
        M = rng.standard_normal(shape)
        return M @ M.swapaxes(-1, -2) + np.eye(shape[-1])

    first, all_of = ((T - 1,), (T,)) if each else ((), ())
    return {"F": 0.9 * np.eye(nx) + 0.2 * rng.standard_normal((*first, nx, nx)),
            "Q": covariance(*first, nx, nx), "H": rng.standard_normal((*all_of, ny, nx)),
            "R": covariance(*all_of, ny, ny), "c": rng.standard_normal((*first, nx)),
            "d": rng.standard_normal((*all_of, ny)), "m0": rng.standard_normal(nx),
            "P0": covariance(nx, nx)}


def series(T: int, ny: int, missing: float = 0.0, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    y = 3 * rng.standard_normal((T, ny))
    y[rng.random((T, ny)) < missing] = np.nan
    return y


def masked(values: Any, where: Any) -> Any:
    module: Any = np.ma  # has no types
    return module.MaskedArray(values, where)


def _step(value: Any, t: int, dims: int) -> Any:
    array = np.asarray(value, float)
    if array.ndim == 0:
        return array.reshape((1,) * dims)
    return array[t] if array.ndim > dims else array


class _At:
    """The parts of a model at one step."""

    def __init__(self, y: Any, t: int, F: Any, Q: Any, H: Any, R: Any, c: Any = None, d: Any = None,
                 m0: Any = None, P0: Any = None) -> None:
        seen = ~np.isnan(y[t])
        self.H = _step(H, t, 2)[seen]
        self.R = _step(R, t, 2)[np.ix_(seen, seen)]
        self.y = (y[t] - (0 if d is None else _step(d, t, 1)))[seen]
        if t + 1 < len(y):
            self.F, self.Q = _step(F, t, 2), _step(Q, t, 2)
            self.c = np.zeros(len(self.F)) if c is None else _step(c, t, 1)


def _log_normal(x: Any, covariance: Any) -> float:
    quadratic = x @ np.linalg.solve(covariance, x) if len(x) else 0.0
    return float(-0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1]))


def by_precision(y: Any, m0: Any = None, P0: Any = None, **given: Any) -> Smoothing:
    """Without m0 and P0: diffuse, and the log-likelihood is of a flat density of 1 of x(1)."""
    T, nx = len(y), _At(y, 0, **given).H.shape[1]
    A, b, log = np.zeros((T * nx, T * nx)), np.zeros(T * nx), 0.0

    def add(G: Any, z: Any, covariance: Any) -> None:
        """z = G x + noise."""
        nonlocal A, b, log
        A += G.T @ np.linalg.solve(covariance, G)
        b += G.T @ np.linalg.solve(covariance, z)
        log += _log_normal(z, covariance)

    for t in range(T):
        at = _At(y, t, **given)
        G = np.zeros((len(at.y), T * nx))
        G[:, t * nx:(t + 1) * nx] = at.H
        add(G, at.y, at.R)
        if t + 1 < T:
            G = np.zeros((nx, T * nx))
            G[:, t * nx:(t + 1) * nx], G[:, (t + 1) * nx:(t + 2) * nx] = -at.F, np.eye(nx)
            add(G, at.c, at.Q)
    if m0 is not None:
        add(np.eye(nx, T * nx), np.atleast_1d(m0), np.atleast_2d(P0))
    Z = np.linalg.inv(A)
    blocks = Z.reshape(T, nx, T, nx).swapaxes(1, 2)
    i = np.arange(T)
    log += 0.5 * float(b @ Z @ b) - 0.5 * float(np.linalg.slogdet(A / (2 * np.pi))[1])
    return Smoothing((Z @ b).reshape(T, nx), blocks[i, i], blocks[i[1:], i[:-1]], log)


def rauch_tung_striebel(y: Any, m0: Any, P0: Any, **given: Any) -> Smoothing:
    T, log = len(y), 0.0
    mean, P = np.atleast_1d(m0), np.atleast_2d(P0)
    predicted, filtered = [], []
    for t in range(T):
        at = _At(y, t, **given)
        predicted.append((mean, P))
        S = at.H @ P @ at.H.T + at.R
        gain = np.linalg.solve(S, at.H @ P).T
        log += _log_normal(at.y - at.H @ mean, S)
        mean, P = mean + gain @ (at.y - at.H @ mean), P - gain @ at.H @ P
        filtered.append((mean, P))
        if t + 1 < T:
            mean, P = at.F @ mean + at.c, at.F @ P @ at.F.T + at.Q
    means, covariances, lags = [mean], [P], []
    for t in range(T - 2, -1, -1):
        mean, P = filtered[t]
        gain = np.linalg.solve(predicted[t + 1][1], _At(y, t, **given).F @ P).T
        lags.append(covariances[-1] @ gain.T)
        covariances.append(P + gain @ (covariances[-1] - predicted[t + 1][1]) @ gain.T)
        means.append(mean + gain @ (means[-1] - predicted[t + 1][0]))
    nx = len(mean)
    return Smoothing(np.array(means[::-1]), np.array(covariances[::-1]),
                     np.array(lags[::-1]).reshape(T - 1, nx, nx), log)


def residuals(y: Any, found: Smoothing, H: Any, R: Any, d: Optional[Any] = None, **_: Any) -> Any:
    standardized = np.full(y.shape, np.nan)
    for t in range(len(y)):
        Ht = _step(H, t, 2)
        variance = np.diag(_step(R, t, 2) - Ht @ found.covariances[t] @ Ht.T)
        offset = 0 if d is None else _step(d, t, 1)
        with np.errstate(invalid="ignore"):
            standardized[t] = (y[t] - Ht @ found.means[t] - offset) / np.sqrt(variance)
    return standardized
