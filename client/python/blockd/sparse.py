"""To and from scipy: blocks of a sparse matrix, and a factorization as a preconditioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import numpy.typing as npt

from blockd.errors import invalid

if TYPE_CHECKING:
    from blockd.client import Handle


def from_scipy_sparse(A: Any, block_size: Optional[int] = None,
                      arrow_size: int = 0) -> "tuple[Any, ...]":
    """The blocks (D, E) of a block-tridiagonal symmetric scipy sparse matrix.

    Args:
        A: square, of any sparse format; both triangles are there, and agree.
        block_size: n, which divides the order, without the border. Default: the smallest that makes
            A block tridiagonal.
        arrow_size: p, so many rows and columns at the end are a border: they may have any entries.

    Returns:
        D (N, n, n) and E (N-1, n, n) with E[i] = A(i+1, i), in float64, or float32 if A is; with a
        border (D, E, border, corner), where border is (p, N n) and corner (p, p).

    Raises:
        InvalidArgument: not square, not symmetric, or an entry lies outside of the three diagonals
            and the border.
    """
    if not hasattr(A, "tocoo"):
        raise TypeError(f"A is a {type(A).__name__}, expected a scipy sparse matrix")
    coo = A.tocsr().tocoo()  # adds what stands twice
    if len(coo.shape) != 2 or coo.shape[0] != coo.shape[1] or coo.shape[0] == 0:
        raise invalid("A", f"of shape {coo.shape}", "square")
    if coo.dtype.kind not in "fiub" or coo.dtype.itemsize > 8:
        raise TypeError(f"A has the dtype {coo.dtype}, expected real numbers of at most 8 bytes")
    _check_symmetric(A, coo)
    order = coo.shape[0] - arrow_size
    if arrow_size < 0 or order < 1:
        raise invalid("arrow_size", arrow_size, f"0 to {coo.shape[0] - 1}")
    row, column = coo.row.astype(np.int64), coo.col.astype(np.int64)
    stored = coo.data != 0
    row, column, data = row[stored], column[stored], coo.data[stored]
    dtype = np.float32 if coo.dtype == np.float32 else np.float64
    last = np.zeros((arrow_size, coo.shape[0]), dtype)
    in_last = row >= order
    last[row[in_last] - order, column[in_last]] = data[in_last]
    chain = ~in_last & (column < order)
    row, column, data = row[chain], column[chain], data[chain]
    n = _block_size(row, column, order) if block_size is None else block_size
    if n < 1 or order % n != 0:
        raise invalid("block_size", n, f"a divisor of {order}, the order without the border" if
                      arrow_size else f"a divisor of the order {order}")
    i, j = row // n, column // n
    far = np.flatnonzero(np.abs(i - j) > 1)
    if far.size:
        at = far[0]
        raise invalid("A", f"not block tridiagonal for n = {n}: it has the entry ({row[at]}, "
                      f"{column[at]})", "entries in neighbouring blocks alone")
    D = np.zeros((order // n, n, n), dtype)
    E = np.zeros((order // n - 1, n, n), dtype)
    same, below = i == j, i == j + 1
    D[i[same], row[same] % n, column[same] % n] = data[same]
    E[j[below], row[below] % n, column[below] % n] = data[below]
    return (D, E, last[:, :order], last[:, order:]) if arrow_size else (D, E)


def _check_symmetric(A: Any, coo: Any) -> None:
    csr = A.tocsr()
    wrong = (csr != csr.T.tocsr()).tocoo()
    for row, column in zip(wrong.row, wrong.col):
        here, there = csr[row, column], csr[column, row]
        if here != here and there != there:
            continue  # both NaN, which differs from itself
        raise invalid("A", f"{here} at ({row}, {column}) and {there} at ({column}, {row})",
                      "symmetric, with both triangles")


def _block_size(row: npt.NDArray[Any], column: npt.NDArray[Any], order: int) -> int:
    """The smallest divisor of the order that leaves no entry outside of the three diagonals."""
    width = int(np.abs(row - column).max(initial=0))
    for n in range(max(1, (width + 1) // 2), order + 1):
        if order % n == 0 and np.abs(row // n - column // n).max(initial=0) <= 1:
            return n
    return order


def inverse_operator(handle: "Handle") -> Any:
    from scipy.sparse.linalg import LinearOperator

    if handle.num_systems is not None:
        raise invalid("handle", "a batch", "one system")

    def apply(b: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return handle.solve(b, check_finite=False)

    def apply_to_vector(b: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return apply(b.reshape(-1))

    # A is symmetric, and so is its inverse.
    return LinearOperator(handle.shape, matvec=apply_to_vector, rmatvec=apply_to_vector, matmat=apply,
                          rmatmat=apply, dtype=handle.dtype)
