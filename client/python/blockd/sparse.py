"""To and from scipy: blocks of a sparse matrix, and a factorization as a preconditioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from blockd._arrays import LARGEST_BLOCK, Array, PaddedBlocks, as_real_array
from blockd._options import choice
from blockd.errors import InvalidArgument, invalid

if TYPE_CHECKING:
    from blockd.client import Handle


def from_scipy_sparse(A: Any, block_size: Optional[int] = None, arrow_size: int = 0, *,
                      triangle: Optional[str] = None, tolerance: Optional[float] = None,
                      symmetrize: bool = False) -> "tuple[Any, ...]":
    """The blocks (D, E) of a block-tridiagonal symmetric scipy sparse matrix.

    Args:
        A: square, of any sparse format; both triangles are there, and agree.
        block_size: n, which divides the order, without the border. Default: the smallest that makes
            A block tridiagonal, or up to twice that if it then divides the order. Where it does not,
            the last block is padded: see below.
        arrow_size: p, so many rows and columns at the end are a border: they may have any entries.
        triangle: "lower" or "upper": read that half alone. The other one is not looked at.
        tolerance: how far a(i, j) and a(j, i) may lie apart, relative to sqrt(s(i) s(j)), where s(i) is
            the largest magnitude in row i. Default: 16 eps of A's dtype, as rounding leaves in M' W M.
            0: none.
        symmetrize: take any A, however far from symmetric: (A + A') / 2.

    Returns:
        D (N, n, n) and E (N-1, n, n) with E[i] = A(i+1, i), in float64, or float32 if A is; with a
        border (D, E, border, corner), where border is (p, N n), without padding, and corner (p, p).
        Where triangles differ, within the tolerance, both have their mean.

        A padded D has the attribute `padding`, k: its last k rows are none of A's. They have 1, or the
        element of A's diagonal that is nearest to it, on their diagonal, and nothing else. What is
        factored from it hides them: right-hand sides, solutions, samples and variances have the rows
        of A, and log-determinants are A's. Copies, and sums and products of the same shape, are padded
        too; np.array(D) is not, and has these rows as any others.

    Raises:
        InvalidArgument: not square, not symmetric, or an entry lies outside of the three diagonals
            and the border.
    """
    if not hasattr(A, "tocsr"):
        raise TypeError(f"A is a {type(A).__name__}, expected a scipy sparse matrix")
    if len(A.shape) != 2 or A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise invalid("A", f"of shape {A.shape}", "square")
    order = A.shape[0] - arrow_size
    if arrow_size < 0 or order < 1:
        raise invalid("arrow_size", arrow_size, f"0 to {A.shape[0] - 1}")
    if triangle is None:
        half = _lower(_symmetric(A, tolerance, symmetrize))
    elif tolerance is not None or symmetrize:
        raise invalid("triangle", repr(triangle), "None with a tolerance or symmetrize")
    else:
        transposed = choice("triangle", triangle, {"lower": False, "upper": True})
        half = _lower(_rows(A.T if transposed else A))
    # Rows are in order, so those of the border come last.
    chain = int(half.start[order])
    lowest = np.arange(order)
    full = np.flatnonzero(np.diff(half.start[:order + 1]))
    lowest[full] = half.column[half.start[full]]
    n = _block_size(lowest) if block_size is None else block_size
    if n < 1 or (block_size is not None and order % n != 0):
        raise invalid("block_size", n, f"a divisor of {order}, the order without the border" if
                      arrow_size else f"a divisor of the order {order}")
    _check_block_tridiagonal(lowest, n, below=triangle == "lower")
    if block_size is None and n > LARGEST_BLOCK:
        raise invalid("A", f"without a narrow band: its blocks would have {n} rows",
                      "another order of its rows (scipy.sparse.csgraph.reverse_cuthill_mckee), or an "
                      "arrow_size for dense rows at its end")
    D, E = _blocks(half, lowest, n, chain)
    if not arrow_size:
        return D, E
    last = np.zeros((arrow_size, A.shape[0]), half.data.dtype)
    row = np.repeat(np.arange(arrow_size), np.diff(half.start[order:]))
    last[row, half.column[chain:]] = half.data[chain:]
    corner = last[:, order:]
    return D, E, last[:, :order], np.where(np.tri(arrow_size, dtype=bool), corner, corner.T)


class _Rows(NamedTuple):
    """The entries of a matrix by rows, those of a row by columns, each place once, no zeros."""

    start: Array  # of each row, and the end of the last
    column: Array
    data: Array  # float64 or float32


def _rows(A: Any) -> _Rows:
    csr = A.tocsr()
    if not csr.has_canonical_format:
        csr = csr.tocsc().tocsr()  # sorts, and is no longer the caller's
        csr.sum_duplicates()
    data = as_real_array("A", csr.data)
    if np.count_nonzero(data) != data.size:
        csr = csr.copy()
        csr.eliminate_zeros()
        data = csr.data
    dtype = np.float32 if data.dtype == np.float32 else np.float64
    return _Rows(csr.indptr, csr.indices, np.asarray(data, dtype))


def _lower(rows: _Rows) -> _Rows:
    """The lower triangle."""
    order = len(rows.start) - 1
    row = np.repeat(np.arange(order, dtype=rows.column.dtype), np.diff(rows.start))
    kept = np.flatnonzero(rows.column <= row)
    return _Rows(np.searchsorted(kept, rows.start), rows.column[kept], rows.data[kept])


def _symmetric(A: Any, tolerance: Optional[float], symmetrize: bool) -> _Rows:
    """A, or where its triangles differ by little enough, its mean with A'."""
    here = _rows(A)
    if tolerance is None:
        tolerance = 16 * float(np.finfo(here.data.dtype).eps)
    if not tolerance >= 0:
        raise invalid("tolerance", tolerance, "at least 0")
    there = _rows(A.T) if A.format == "csc" else _transposed(here)
    if not (np.array_equal(here.start, there.start) and np.array_equal(here.column, there.column)):
        here, there = _united(here, there)
    at = np.flatnonzero(here.data != there.data)
    if not at.size:
        return here
    a, b = here.data[at].astype(np.float64), there.data[at].astype(np.float64)
    row, column = np.searchsorted(here.start, at, "right") - 1, here.column[at]
    if not symmetrize:
        scale = np.sqrt(_row_scale(here))
        with np.errstate(invalid="ignore"):
            agree = np.abs(a - b) <= tolerance * scale[row] * scale[column]
        wrong = np.flatnonzero(~(agree | (np.isnan(a) & np.isnan(b))))
        if wrong.size:
            raise _asymmetric(row[wrong[0]], column[wrong[0]], a[wrong[0]], b[wrong[0]])
    data = here.data.copy()
    data[at] = 0.5 * a + 0.5 * b
    return here._replace(data=data)


def _transposed(rows: _Rows) -> _Rows:
    import scipy.sparse

    order = len(rows.start) - 1
    csc = scipy.sparse.csr_matrix((rows.data, rows.column, rows.start), (order, order)).tocsc()
    return _Rows(csc.indptr, csc.indices, csc.data)


def _united(*both: _Rows) -> "tuple[_Rows, ...]":
    """Matrices of one order, each with a zero where only another one has an entry."""
    order = len(both[0].start) - 1
    keys = [np.repeat(np.arange(order, dtype=np.int64) * order, np.diff(one.start)) + one.column
            for one in both]
    united = np.unique(np.concatenate(keys))
    start = np.searchsorted(united, np.arange(order + 1, dtype=np.int64) * order)
    found = []
    for one, key in zip(both, keys):
        data = np.zeros(united.size, one.data.dtype)
        data[np.searchsorted(united, key)] = one.data
        found.append(_Rows(start, united % order, data))
    return tuple(found)


def _row_scale(rows: _Rows) -> "npt.NDArray[np.float64]":
    """The largest finite magnitude of each row."""
    size = np.abs(rows.data).astype(np.float64)
    size[~np.isfinite(size)] = 0
    scale = np.zeros(len(rows.start) - 1)
    full = np.flatnonzero(np.diff(rows.start))
    scale[full] = np.maximum.reduceat(size, rows.start[full])
    return scale


def _asymmetric(row: int, column: int, here: float, there: float) -> InvalidArgument:
    return invalid("A", f"{here} at ({row}, {column}) and {there} at ({column}, {row})",
                   "symmetric, with both triangles; see triangle, tolerance and symmetrize")


def _block_size(lowest: Array) -> int:
    """The smallest n that makes a matrix block tridiagonal whose row r begins at `lowest[r]`.

    Or the smallest divisor of the order that does, if that is no more than twice as large.
    """
    order = len(lowest)
    row = np.arange(order)
    width = int((row - lowest).max())
    # Two blocks of n hold a band of 2 n - 1 at most, and of n at least.
    sizes = np.arange(max(1, (width + 1) // 2), max(1, width) + 1)
    while True:
        far = np.flatnonzero(row // sizes[0] - lowest // sizes[0] > 1)
        if not far.size:
            break
        # What does not fit tells most of the other sizes that do not.
        for at in far[np.linspace(0, far.size - 1, 64).astype(np.intp)]:
            sizes = sizes[row[at] // sizes - lowest[at] // sizes <= 1]
    smallest = int(sizes[0])
    divisors = np.arange(smallest, min(2 * smallest, order) + 1)
    for n in divisors[order % divisors == 0]:
        if (row // n - lowest // n <= 1).all():
            return int(n)
    return smallest


def _check_block_tridiagonal(lowest: Array, n: int, below: bool) -> None:
    """`below`: name the entry in the lower triangle."""
    row = np.arange(len(lowest))
    far = np.flatnonzero(row // n - lowest // n > 1)
    if far.size:
        at = int(far[np.argmin(lowest[far])])
        place = (at, int(lowest[at])) if below else (int(lowest[at]), at)
        raise invalid("A", f"not block tridiagonal for n = {n}: it has the entry {place}",
                      "entries in neighbouring blocks alone")


def _blocks(half: _Rows, lowest: Array, n: int, entries: int) -> "tuple[Array, Array]":
    """D and E of the first `entries` of a lower triangle, the rows of which `lowest` has."""
    order = len(lowest)
    num_blocks = -(-order // n)
    diagonal = num_blocks * n * n
    # One array, D before E, so that one assignment fills both.
    both = np.zeros(diagonal + (num_blocks - 1) * n * n, half.data.dtype)
    row = np.arange(order)
    first = row // n * n  # of the rows of the same block
    count = np.diff(half.start[:order + 1])
    column, data = half.column[:entries].astype(np.int64), half.data[:entries]
    # Element (r, c) of D stands at r n + c - first(r), that of E, whose column lies in the block
    # before, n (n - 1) before the same place of E.
    at = np.repeat(row * n - first, count)
    at += column
    same = column >= np.repeat(first, count)
    both[np.where(same, at, at + (diagonal - n * n + n))] = data
    # The upper triangle of D: c n + r - first(r).
    if n > 1:
        at = np.repeat(row - first, count)
        at += column * n
        both[at[same]] = data[same]
    D = both[:diagonal].reshape(num_blocks, n, n)
    E = both[diagonal:].reshape(num_blocks - 1, n, n)
    return PaddedBlocks.of(D, num_blocks * n - order), E


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
