"""Sparse matrices whose triangles differ by rounding, or of which one is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import blockd
from support.problems import arrowhead, bordered, dense, system

EPS = float(np.finfo(float).eps)


def normal_equations(seed: int, rows: int = 40, bands: int = 2, density: float = 0.0) -> Any:
    """M' W M + I / 10, as scipy forms it."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-3, 3, rows)
    M = scipy.sparse.diags([rng.normal(size=rows - k) for k in range(bands)], list(range(bands))).tocsr()
    W = scipy.sparse.diags(rng.uniform(0.1, 3, rows))
    return ((M @ scipy.sparse.diags(scale)).T @ W @ M @ scipy.sparse.diags(scale)
            + scipy.sparse.diags(0.1 * scale**2)).tocsr()


def whole(blocks: "tuple[Any, ...]") -> Any:
    return dense(blocks[0], blocks[1]) if len(blocks) == 2 else arrowhead(*blocks)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "bsr"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bands", [2, 3, 5])
def test_what_rounding_leaves_is_taken(form: str, seed: int, bands: int) -> None:
    A = normal_equations(seed, bands=bands)
    found = blockd.from_scipy_sparse(A.asformat(form), 4)
    # No half is read rather than the other one.
    for one, other in zip(found, blockd.from_scipy_sparse(A.T.asformat(form), 4)):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[0], found[0].swapaxes(1, 2))
    np.testing.assert_array_equal(whole(found), (A / 2 + A.T / 2).toarray())


def test_some_normal_equations_are_not_symmetric() -> None:
    assert any(abs(A - A.T).max() > 0 for A in map(normal_equations, range(4)))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("factor, taken", [(15, True), (17, False)])
def test_the_tolerance_is_that_of_the_rows_and_the_dtype(dtype: str, factor: float, taken: bool) -> None:
    # The two rows have elements of up to 2**20 and 1.
    eps = float(np.finfo(dtype).eps)
    here = np.array([[2.0**20, 1], [1, 1]], dtype)
    here[1, 0] += dtype_of(dtype)(factor * eps * 2.0**10)
    A = scipy.sparse.csr_matrix(here)
    if taken:
        D, _ = blockd.from_scipy_sparse(A, 2)
        assert D.dtype == np.dtype(dtype) and D[0, 0, 1] == D[0, 1, 0]
        assert D[0, 0, 1] == pytest.approx(1 + factor * eps * 2.0**9, abs=eps)
    else:
        with pytest.raises(blockd.InvalidArgument, match=r"at \(0, 1\) and .* at \(1, 0\), expected symmetric"):
            blockd.from_scipy_sparse(A, 2)


def dtype_of(name: str) -> Any:
    return np.dtype(name).type


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_the_tolerance_may_be_set(form: str) -> None:
    A = scipy.sparse.csr_matrix([[4, 1.0], [1.01, 4]]).asformat(form)
    D, _ = blockd.from_scipy_sparse(A, 2, tolerance=0.01)
    np.testing.assert_allclose(D[0], [[4, 1.005], [1.005, 4]], rtol=EPS)
    with pytest.raises(ValueError, match="symmetrize"):
        blockd.from_scipy_sparse(A, 2, tolerance=0.001)
    ulp = scipy.sparse.csr_matrix([[4, 1.0], [1 + EPS, 4]])
    with pytest.raises(ValueError, match="symmetric"):
        blockd.from_scipy_sparse(ulp, tolerance=0)
    for wrong in (-1.0, np.nan):
        with pytest.raises(blockd.InvalidArgument) as caught:
            blockd.from_scipy_sparse(ulp, tolerance=wrong)
        assert caught.value.field == "tolerance"


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_any_matrix_is_symmetrized_on_request(form: str) -> None:
    here = np.random.default_rng(3).standard_normal((6, 6)) * np.tri(6, k=1)
    found = blockd.from_scipy_sparse(scipy.sparse.csr_matrix(here).asformat(form), 6, symmetrize=True)
    np.testing.assert_array_equal(whole(found), here / 2 + here.T / 2)
    found = blockd.from_scipy_sparse(scipy.sparse.csr_matrix(here).asformat(form), 3, 3, symmetrize=True)
    np.testing.assert_array_equal(whole(found), here / 2 + here.T / 2)


def test_an_entry_that_one_triangle_lacks_is_a_zero_there() -> None:
    here = np.diag([4.0, 4, 4])
    here[2, 1] = 4 * EPS
    D, E = blockd.from_scipy_sparse(scipy.sparse.csr_matrix(here), 1)
    assert E[1, 0, 0] == 2 * EPS and E[0, 0, 0] == 0
    here[2, 1] = 80 * EPS
    with pytest.raises(ValueError, match=r"0.0 at \(1, 2\) and .* at \(2, 1\)"):
        blockd.from_scipy_sparse(scipy.sparse.csr_matrix(here), 1)
    # Zeros that are stored are none.
    A = scipy.sparse.coo_matrix(([4.0, 0, 4], ([0, 0, 1], [0, 1, 1])), (2, 2))
    assert blockd.from_scipy_sparse(A)[0].shape == (2, 1, 1) and A.nnz == 3


def test_what_is_not_finite_hides_no_asymmetry() -> None:
    for value in (np.nan, np.inf):
        A = scipy.sparse.csr_matrix([[value, value, 0], [value, 4, 1], [0, 1.1, 4]])
        with pytest.raises(ValueError, match=r"1.0 at \(1, 2\) and 1.1 at \(2, 1\)"):
            blockd.from_scipy_sparse(A)
        A[2, 1] = 1
        D, E = blockd.from_scipy_sparse(A)
        np.testing.assert_array_equal([D[0, 0, 0], E[0, 0, 0]], [value, value])
        A[0, 1] = 1
        with pytest.raises(ValueError, match="symmetric"):
            blockd.from_scipy_sparse(A)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dia"])
@pytest.mark.parametrize("triangle", ["lower", "upper"])
@pytest.mark.parametrize("other", [None, 7.0])
@pytest.mark.parametrize("p", [0, 4])
def test_one_triangle_is_read_on_request(form: str, triangle: str, other: Any, p: int) -> None:
    A = arrowhead(*bordered(5, 3, 4)) if p else dense(*system(5, 3))
    half = np.tril(A) if triangle == "lower" else np.triu(A)
    if other:  # is not looked at
        half += other * (np.triu(np.ones_like(A), 1) if triangle == "lower" else np.tril(np.ones_like(A), -1))
    given = scipy.sparse.csr_matrix(half).asformat(form)
    for n in (3, None):
        found = blockd.from_scipy_sparse(given, n, p, triangle=triangle)
        assert found[0].shape == (5, 3, 3)
        np.testing.assert_array_equal(found[0], found[0].swapaxes(1, 2))
        np.testing.assert_array_equal(whole(found), A)
    with pytest.raises(ValueError, match="symmetric"):
        blockd.from_scipy_sparse(given, arrow_size=p)


@pytest.mark.parametrize("triangle, place", [("lower", r"\(4, 0\)"), ("upper", r"\(0, 4\)")])
def test_an_entry_outside_is_named_in_the_triangle_that_is_read(triangle: str, place: str) -> None:
    A = scipy.sparse.diags([1.0, 4.0, 1.0], [-4, 0, 4], (6, 6))
    with pytest.raises(ValueError, match="it has the entry " + place):
        blockd.from_scipy_sparse(A, 2, triangle=triangle)


@pytest.mark.parametrize("arguments", [{"triangle": "left"}, {"triangle": "lower", "symmetrize": True},
                                       {"triangle": "upper", "tolerance": 1e-9}])
def test_what_makes_no_sense_is_refused(arguments: Any) -> None:
    with pytest.raises(blockd.InvalidArgument) as caught:
        blockd.from_scipy_sparse(scipy.sparse.eye(4), **arguments)
    assert caught.value.field == "triangle"


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_the_matrix_stays_as_it_is(form: str) -> None:
    entries = ([0.0, 1, 2, 4, 4, 3], ([0, 1, 0, 1, 0, 1], [1, 0, 1, 1, 0, 0]))
    A = scipy.sparse.coo_matrix(entries, (2, 2))
    if form != "coo":  # with what stands twice, and not in order
        sort = np.argsort(A.row if form == "csr" else A.col, kind="stable")
        kind = scipy.sparse.csr_matrix if form == "csr" else scipy.sparse.csc_matrix
        A = kind((A.data[sort], (A.col if form == "csr" else A.row)[sort], [0, 3, 6]), (2, 2))
    before = A.copy()
    D, _ = blockd.from_scipy_sparse(A, 2, symmetrize=True)
    np.testing.assert_array_equal(D[0], [[4, 3], [3, 4]])
    np.testing.assert_array_equal(A.data, before.data)
    assert A.nnz == before.nnz == 6


def test_integers_that_no_double_has_are_refused() -> None:
    with pytest.raises(TypeError, match="2\\*\\*53"):
        blockd.from_scipy_sparse(scipy.sparse.csr_matrix([[2**53 + 1]]))
    D, _ = blockd.from_scipy_sparse(scipy.sparse.csr_matrix(np.array([[2, 1], [1, 2]], np.uint8)), 2)
    assert D.dtype == np.float64
