"""Systems with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np


def system(N: int, n: int, seed: int = 0, batch: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """D and E of a random system that is positive definite, well conditioned and not block symmetric."""
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((*batch, N - 1, n, n)) / np.sqrt(n)
    M = rng.standard_normal((*batch, N, n, n)) / np.sqrt(n)
    return M @ M.swapaxes(-1, -2) + 6 * np.eye(n), E


def bordered(N: int, n: int, p: int, seed: int = 0, batch: tuple[int, ...] = ()) -> "tuple[Any, ...]":
    """D and E of such a system, and a border of p rows and its corner: positive definite as a whole."""
    D, E = system(N, n, seed, batch)
    B = np.random.default_rng(seed + 1).standard_normal((*batch, p, N * n)) / np.sqrt(N * n)
    M = np.random.default_rng(seed + 2).standard_normal((*batch, p, p)) / np.sqrt(p)
    return D, E, B, M @ M.swapaxes(-1, -2) + B @ B.swapaxes(-1, -2) + 2 * np.eye(p)


def arrowhead(D: Any, E: Any, B: Any, C: Any, lower: bool = True) -> Any:
    """All of it in full, of one triangle of D and of C."""
    corner = dense(C[np.newaxis], np.empty((0, *C.shape)), lower)
    rows = B.reshape(len(C), -1)
    return np.block([[dense(D, E, lower), rows.T], [rows, corner]])


def dense(D: Any, E: Any, lower: bool = True) -> Any:
    """A in full, of one triangle of D."""
    N, n, _ = D.shape
    A = np.zeros((N * n, N * n))
    for i in range(N):
        half = np.tril(D[i], -1) if lower else np.triu(D[i], 1).T
        A[i * n:(i + 1) * n, i * n:(i + 1) * n] = half + half.T + np.diag(np.diag(D[i]))
    for i in range(N - 1):
        A[(i + 1) * n:(i + 2) * n, i * n:(i + 1) * n] = E[i]
        A[i * n:(i + 1) * n, (i + 1) * n:(i + 2) * n] = E[i].T
    return A


def solution(D: Any, E: Any, b: Any, lower: bool = True) -> Any:
    """By a dense solve, in the shape of b."""
    A = dense(np.asarray(D, float), np.asarray(E, float), lower)
    return np.linalg.solve(A, np.asarray(b, float).reshape(len(A), -1)).reshape(np.shape(b))
