"""To and from scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import blockd
from support.problems import dense, system


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"])
@pytest.mark.parametrize("N, n", [(1, 4), (2, 3), (5, 1), (6, 4)])
def test_blocks_of_every_format(form: str, N: int, n: int) -> None:
    D, E = system(N, n)
    A = scipy.sparse.coo_matrix(dense(D, E)).asformat(form)
    for block_size in (None, n):
        of_D, of_E = blockd.from_scipy_sparse(A, block_size)
        np.testing.assert_array_equal(dense(of_D, of_E), dense(D, E))
        np.testing.assert_array_equal(of_D, of_D.swapaxes(1, 2))


def test_the_smallest_blocks_are_found() -> None:
    D, E = blockd.from_scipy_sparse(scipy.sparse.diags([-1.0, 4.0, -1.0], [-1, 0, 1], (6, 6)))
    assert D.shape == (6, 1, 1) and E.shape == (5, 1, 1)
    D, E = blockd.from_scipy_sparse(scipy.sparse.diags([-1.0, 4.0, -1.0], [-2, 0, 2], (6, 6)))
    assert D.shape == (3, 2, 2)
    D, E = blockd.from_scipy_sparse(scipy.sparse.eye(5, dtype=np.float32))
    assert D.shape == (5, 1, 1) and D.dtype == np.float32


def test_entries_that_stand_twice_add_up() -> None:
    A = scipy.sparse.coo_matrix(([1.0, 2.0, 5.0], ([0, 0, 1], [0, 0, 1])), shape=(2, 2))
    D, _ = blockd.from_scipy_sparse(A)
    np.testing.assert_array_equal(D[:, 0, 0], [3, 5])


@pytest.mark.parametrize("A, block_size, message", [
    (scipy.sparse.eye(4, 5), None, "square"),
    (scipy.sparse.csr_matrix([[2, 1], [0, 2]]), None, "symmetric"),
    (scipy.sparse.csr_matrix([[2, 1], [3, 2]]), None, "symmetric"),
    (scipy.sparse.eye(6), 4, "a divisor"), (scipy.sparse.eye(6), 0, "a divisor"),
    (scipy.sparse.diags([1.0, 4.0, 1.0], [-3, 0, 3], (6, 6)), 1, r"the entry \(0, 3\)")])
def test_what_is_no_such_matrix_is_refused(A: Any, block_size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        blockd.from_scipy_sparse(A, block_size)


def test_what_is_not_sparse_or_not_real_is_refused(client: blockd.Client) -> None:
    with pytest.raises(TypeError):
        blockd.from_scipy_sparse(np.eye(4))
    with pytest.raises(TypeError):
        blockd.from_scipy_sparse(scipy.sparse.eye(4, dtype=complex))
    with pytest.raises(TypeError, match="from_scipy_sparse"):
        client.factor(scipy.sparse.eye(4))


def test_preconditions_conjugate_gradients(client: blockd.Client) -> None:
    """Of a matrix that is block tridiagonal but for a little: a handful of steps."""
    N, n = 30, 4
    D, E = system(N, n)
    band = dense(D, E)
    far = np.zeros_like(band)
    far[0, -1] = far[-1, 0] = 0.1
    A, b = scipy.sparse.csr_matrix(band + far), np.ones(N * n)
    steps: list[Any] = []
    with client.factor(D, E) as factored:
        M = factored.linear_operator()
        x, failed = scipy.sparse.linalg.cg(A, b, M=M, atol=0.0, callback=steps.append)
        assert failed == 0 and len(steps) <= 5
        np.testing.assert_allclose(A @ x, b, rtol=0, atol=1e-4)
        np.testing.assert_allclose(M @ (band @ np.eye(N * n, 3)), np.eye(N * n, 3), atol=1e-12)
        np.testing.assert_allclose(M.T @ (band @ b), b, atol=1e-12)
        np.testing.assert_allclose(M @ (band @ b)[:, np.newaxis], b[:, np.newaxis], atol=1e-12)
        assert M.shape == (N * n, N * n) and M.dtype == np.float64
