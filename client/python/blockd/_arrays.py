"""Between the caller's arrays and the bytes of the wire.

Whatever its order, strides and byte order, an array is read by its indices, never by its memory.
On the wire blocks are column-major; see proto/blockd/v1/blockd.proto.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Iterator, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from blockd.errors import invalid

Array = npt.NDArray[Any]

LARGEST_BLOCK = 32768
_LARGEST_BORDER = 1024
_LARGEST_PACKED = 64  # rows of a diagonal block of which the lower triangle alone travels


def as_real_array(name: str, value: Any) -> Array:
    """`value` as an array of real numbers, without a copy where it is one. DLPack is taken.

    TypeError for what numbers cannot be read from without losing something: complex, objects, text,
    dates, masked values, long doubles, sparse matrices.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill it or take .data")
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"{name} cannot be read by DLPack (from the CPU): {error}") from error
    if hasattr(value, "tocsr"):
        raise TypeError(f"{name} is a sparse matrix; blockd.from_scipy_sparse makes its blocks")
    array = np.asarray(value)
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "fiub" or size > 8:
        raise TypeError(f"{name} has the dtype {array.dtype}, expected real numbers of at most 8 bytes")
    if kind in "iu" and size == 8 and array.size and max(-int(array.min()), int(array.max())) > 2**53:
        raise TypeError(f"{name} has integers beyond 2**53, which float64 does not have exactly")
    return array


class PaddedBlocks(np.ndarray[Any, "np.dtype[Any]"]):
    """Diagonal blocks (N, n, n) whose last `padding` rows fill up the last block.

    These rows have positive elements on their diagonal, and nothing else. Results of the same shape
    are padded too, others are not.
    """

    padding: int = 0

    @staticmethod
    def of(blocks: Array, padding: int) -> Array:
        """`blocks`, with a diagonal in their last rows; `blocks` themselves without such rows."""
        if padding == 0:
            return blocks
        diagonal = np.einsum("ijj->ij", blocks).reshape(-1)[:-padding]
        known = diagonal[(diagonal > 0) & np.isfinite(diagonal)]
        # No norm of A or of inv(A) grows by an element between those of its diagonal.
        value = min(max(1.0, known.min()), known.max()) if known.size else 1.0
        rows = np.arange(blocks.shape[1] - padding, blocks.shape[1])
        blocks[-1, rows, rows] = value
        padded = blocks.view(PaddedBlocks)
        padded.padding = padding
        return padded

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, PaddedBlocks) and source.shape == self.shape:
            self.padding = source.padding

    def __reduce__(self) -> Any:
        whole: Any = super().__reduce__()
        make, arguments, state = whole
        return make, arguments, (*state, self.padding)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:-1])
        self.padding = state[-1]


def _wire_dtype(*arrays: Array) -> "np.dtype[Any]":
    """float32 where all are, else float64, which every other dtype here fits."""
    single: bool = all(array.dtype.kind == "f" and array.dtype.itemsize == 4 for array in arrays)
    return np.dtype("<f4" if single else "<f8")


class System:
    """K systems of one shape, checked, with the order in which their scalars travel.

    `parts` are views whose elements in C order are the wire's: diagonal blocks (K, N, n, n),
    couplings (K, N-1, n, n), and, if there is a border, its rows (K, p, N, n) and its corner
    (K, 1, p, p). Of a `packed` system's diagonal blocks only the lower triangle is on the wire.
    Nothing was copied or converted yet; `pieces` does that a chunk at a time.
    """

    def __init__(self, diagonal: Any, coupling: Any, lower: bool, check_symmetric: bool,
                 border: Any = None, corner: Any = None) -> None:
        blocks = as_real_array("D", diagonal)
        if blocks.ndim not in (3, 4):
            raise invalid("D", f"of shape {blocks.shape}", "(N, n, n), or (K, N, n, n) for a batch")
        self.batched = blocks.ndim == 4
        if not self.batched:
            blocks = blocks[np.newaxis]
        count, num_blocks, size, other = blocks.shape
        if size != other or size < 1 or num_blocks < 1 or count < 1:
            raise invalid("D", f"of shape {np.shape(diagonal)}",
                          "square blocks, at least one: (N, n, n), or (K, N, n, n)")
        if size > LARGEST_BLOCK:
            raise invalid("D", f"of blocks of {size} x {size}", f"n of at most {LARGEST_BLOCK}")
        if coupling is None and num_blocks == 1:
            coupling = np.empty((count, 0, size, size) if self.batched else (0, size, size),
                                blocks.dtype)
        expected = (count, num_blocks - 1, size, size)
        if coupling is None:
            raise invalid("E", "missing", f"the couplings A(i+1, i): {expected[not self.batched:]}")
        edges = as_real_array("E", coupling)
        shape = edges.shape
        if not self.batched:
            edges = edges[np.newaxis]
        if edges.shape != expected:
            raise invalid("E", f"of shape {shape}",
                          f"the couplings A(i+1, i): {expected[not self.batched:]}")
        self.count, self.num_blocks, self.block_size = count, num_blocks, size
        self.packed = 1 < size <= _LARGEST_PACKED
        self.padding = diagonal.padding if isinstance(diagonal, PaddedBlocks) else 0
        bordering = self._bordering(border, corner)
        self.arrow_size = bordering[0].shape[1] if bordering else 0
        self.dtype = _wire_dtype(blocks, *([edges] if edges.size else []), *bordering)
        if check_symmetric:
            _check_symmetric(blocks, lambda k, i: f"D[{k}, {i}]" if self.batched else f"D[{i}]")
            for corners in bordering[1:]:
                _check_symmetric(corners, lambda k, _: f"corner[{k}]" if self.batched else "corner")
        self.padding_logdet = self._padding_logdet(blocks[0, -1], edges, bordering, lower)
        # C order of A(i+1, i) is column-major A(i, i+1), and the wire takes either.
        self.superdiagonal = abs(edges.strides[3]) <= abs(edges.strides[2])
        self.parts = [blocks, edges if self.superdiagonal else edges.swapaxes(2, 3), *bordering]
        if lower:
            # The wire reads the lower triangle of D and the corner, column-major: the upper one in C
            # order.
            self.parts[::3] = [part.swapaxes(2, 3) for part in self.parts[::3]]

    def _bordering(self, border: Any, corner: Any) -> "list[Array]":
        """The rows of the border (K, p, N, n) and its corner (K, 1, p, p), or nothing."""
        if border is None and corner is None:
            return []
        rows = as_real_array("border", [] if border is None else border)
        count, num_blocks, size = self.count, self.num_blocks, self.block_size
        lead = (count,) if self.batched else ()
        p = rows.shape[len(lead)] if rows.ndim > len(lead) else 0
        if self.padding and rows.shape[len(lead) + 1:] == (num_blocks * size - self.padding,):
            rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, self.padding)])
        if (rows.shape[:len(lead)] != lead
                or rows.shape[len(lead) + 1:] not in ((num_blocks * size,), (num_blocks, size))):
            k = f"{count}, " if self.batched else ""
            raise invalid("border", "missing" if border is None else f"of shape {rows.shape}",
                          f"p dense rows: ({k}p, {num_blocks * size}) or "
                          f"({k}p, {num_blocks}, {size})")
        if not 1 <= p <= _LARGEST_BORDER:
            raise invalid("border", f"of {p} rows", f"1 to {_LARGEST_BORDER}, or None")
        expected = (*lead, p, p)
        if corner is None:
            raise invalid("corner", "missing", f"the matrix beside the border: {expected}")
        corners = as_real_array("corner", corner)
        if corners.shape != expected:
            raise invalid("corner", f"of shape {corners.shape}",
                          f"the matrix beside the border: {expected}")
        return [rows.reshape(count, p, num_blocks, size), corners.reshape(count, 1, p, p)]

    def _padding_logdet(self, block: Array, edges: Array, bordering: "list[Array]",
                        lower: bool) -> float:
        """The part of the padding in the log-determinant. Checks the last block's padding."""
        if self.padding == 0:
            return 0.0
        own = slice(self.block_size - self.padding, None)
        rows = np.tril(block[own, own] if lower else block.T[own, own])
        beside = block[own, :-self.padding] if lower else block[:-self.padding, own]
        diagonal = rows.diagonal().astype(self.dtype).astype(np.float64)
        if (not ((diagonal > 0) & np.isfinite(diagonal)).all()
                or np.count_nonzero(rows) != len(diagonal) or beside.any()
                or edges[:, -1:, own].any() or any(one[:, :, -1, own].any() for one in bordering[:1])):
            raise invalid("D", f"padded by {self.padding} rows that are not zero beside a positive "
                          "diagonal", "blocks as from_scipy_sparse pads them; np.array(D) has these "
                          "rows as any others")
        return float(np.log(diagonal).sum())

    @property
    def nbytes(self) -> int:
        scalars = sum(part.size for part in self.parts)
        if self.packed:
            scalars -= self.count * self.num_blocks * math.comb(self.block_size, 2)
        return scalars * self.dtype.itemsize

    def copy(self) -> "System":
        """One that later changes of the caller's arrays do not reach."""
        twin = object.__new__(System)
        twin.__dict__.update(self.__dict__)
        twin.parts = [np.array(part, self.dtype, order="C") for part in self.parts]
        return twin

    def data(self, system: int) -> "list[Array]":
        """The parts of one system, as the wire has them."""
        parts = [part[system] for part in self.parts]
        if self.packed:
            parts[0] = _lower_triangles(parts[0])
        return [np.ascontiguousarray(part, self.dtype) for part in parts]

    def pieces(self, chunk_bytes: int) -> Iterator[Array]:
        """All scalars in the order of the wire, some `chunk_bytes` at a time."""
        for system in range(self.count):
            diagonal, *others = [part[system] for part in self.parts]
            together = len(diagonal)
            if self.packed:
                together = max(1, chunk_bytes // (diagonal[0].size * self.dtype.itemsize))
            for i in range(0, len(diagonal), together):
                blocks = diagonal[i:i + together]
                yield from pieces(_lower_triangles(blocks) if self.packed else blocks, self.dtype,
                                  chunk_bytes)
            for part in others:
                yield from pieces(part, self.dtype, chunk_bytes)


@functools.lru_cache(maxsize=None)
def _triangle(size: int, column_stride: int, row_stride: int) -> Array:
    """Where the lower triangle's elements lie in a block, column after column."""
    columns, rows = np.triu_indices(size)
    places: Array = columns * column_stride + rows * row_stride
    return places


def _lower_triangles(blocks: Array) -> Array:
    """Blocks (N, column, row) without what is above their diagonals: (N, n(n+1)/2, 1)."""
    count, size, _ = blocks.shape
    if abs(blocks.strides[1]) < abs(blocks.strides[2]):
        found = blocks.swapaxes(1, 2).reshape(count, -1).take(_triangle(size, 1, size), 1)
    else:
        found = blocks.reshape(count, -1).take(_triangle(size, size, 1), 1)
    return found[..., np.newaxis]


def pieces(blocks: Array, dtype: "np.dtype[Any]", chunk_bytes: int) -> Iterator[Array]:
    """The scalars of `blocks`, of three axes, in C order, some `chunk_bytes` at a time, in whole rows."""
    _, num_rows, columns = blocks.shape
    row_bytes = columns * dtype.itemsize
    together = chunk_bytes // (row_bytes * num_rows)
    if together > 0:
        for i in range(0, len(blocks), together):
            yield np.ascontiguousarray(blocks[i:i + together], dtype)
        return
    rows = max(1, chunk_bytes // row_bytes)
    for block in blocks:
        for i in range(0, num_rows, rows):
            yield np.ascontiguousarray(block[i:i + rows], dtype)


def _check_symmetric(blocks: Array, name: "Callable[[int, int], str]") -> None:
    for system, of_system in enumerate(blocks):
        for i, block in enumerate(of_system):
            # NaN differs from itself; whether it is allowed is another question.
            wrong = (block != block.T) & ~(np.isnan(block) & np.isnan(block.T))
            if wrong.any():
                row, column = (int(at) for at in np.argwhere(wrong)[0])
                raise invalid(name(system, i), f"{block[row, column]} at ({row}, {column}) and "
                              f"{block[column, row]} at ({column}, {row})", "symmetric")


class Shape(NamedTuple):
    """What a factorization says of the arrays that go with it."""

    systems: int  # K
    batched: bool  # K is an axis of the arrays
    num_blocks: int  # N
    block_size: int  # n
    dtype: "np.dtype[Any]"  # of the wire
    arrow_size: int = 0  # p
    padding: int = 0  # rows at the end of the last block that the arrays do not have

    @property
    def wire_rows(self) -> int:
        return self.num_blocks * self.block_size + self.arrow_size

    @property
    def rows(self) -> int:
        return self.wire_rows - self.padding

    @property
    def by_blocks(self) -> bool:
        """The rows of an array may be (N, n)."""
        return self.arrow_size == 0 and self.padding == 0

    @property
    def hidden(self) -> slice:
        """The padding among the rows of the wire."""
        end = self.num_blocks * self.block_size
        return slice(end - self.padding, end)

    @classmethod
    def of(cls, system: System) -> "Shape":
        return cls(system.count, system.batched, system.num_blocks, system.block_size, system.dtype,
                   system.arrow_size, system.padding)


class Rhs(NamedTuple):
    """Right-hand sides: `data` (K, d, N n + p) in C order is what the wire has."""

    data: Array
    shape: tuple[int, ...]  # of the caller's array
    hidden: slice = slice(0, 0)  # rows of `data` that the caller's array does not have

    @property
    def columns(self) -> int:
        return int(self.data.shape[1])

    def caller_array(self) -> Array:
        return self.solution(self.data)

    def solution(self, data: Array) -> Array:
        """A solution, laid out as `data` is, in the shape of the caller's array; no copy but for a
        border behind padding."""
        found: Array = without_rows(data, self.hidden).swapaxes(1, 2).reshape(self.shape)
        return found


def without_rows(data: Array, hidden: slice) -> Array:
    """Without some of the rows, which are the last axis."""
    if hidden.stop == hidden.start:
        return data
    if hidden.stop == data.shape[-1]:
        return data[..., :hidden.start]
    return np.concatenate([data[..., :hidden.start], data[..., hidden.stop:]], axis=-1)


def _with_rows(data: Array, shape: Shape) -> Array:
    """With zeros in the hidden rows, for the wire."""
    whole = np.zeros((*data.shape[:-1], shape.wire_rows), shape.dtype)
    whole[..., :shape.hidden.start] = data[..., :shape.hidden.start]
    whole[..., shape.hidden.stop:] = data[..., shape.hidden.start:]
    return whole


def rhs(b: Any, shape: Shape, copy: bool = False) -> Rhs:
    """The right-hand sides of a caller, checked.

    One system takes (N n,), (N n, d), (N, n) and (N, n, d), with a border of p rows (N n + p,) and
    (N n + p, d), with padding as many rows less; a batch of K has K before that. Other dtypes become
    that of the matrix; a number that would become infinite is refused. `copy`: later changes of `b` do
    not reach the result.
    """
    array = as_real_array("b", b)
    lead = (shape.systems,) if shape.batched else ()
    inner = array.shape[len(lead):]
    blocks = (shape.num_blocks, shape.block_size)
    if array.shape[:len(lead)] == lead and inner:
        if inner[0] == shape.rows and len(inner) <= 2:
            columns = inner[1:]
        elif inner[:2] == blocks and len(inner) <= 3 and shape.by_blocks:
            columns = inner[2:]
        else:
            columns = None
        if columns is not None:
            d = math.prod(columns)
            flat = array.reshape(shape.systems, shape.rows, d)
            wire = flat.swapaxes(1, 2)
            with np.errstate(over="ignore"):
                if shape.padding:
                    data = _with_rows(wire, shape)
                else:
                    data = (np.array(wire, shape.dtype, order="C") if copy else
                            np.ascontiguousarray(wire, shape.dtype))
            if data.dtype.itemsize < array.dtype.itemsize:
                _check_fits("b", array, shape.dtype)
            if shape.padding:
                return Rhs(data, array.shape, shape.hidden)
            return Rhs(data, array.shape)
    k = f"{shape.systems}, " if shape.batched else ""
    rows, (N, n) = shape.rows, blocks
    expected = (f"({k}{rows}) or ({k}{rows}, d)" if not shape.by_blocks else
                f"({k}{rows}), ({k}{rows}, d), ({k}{N}, {n}) or ({k}{N}, {n}, d)")
    raise invalid("b", f"of shape {array.shape}", expected)


def _check_fits(name: str, array: Array, dtype: "np.dtype[Any]") -> None:
    """Refuses finite numbers that are infinite in this dtype."""
    with np.errstate(over="ignore"):
        lost = np.isinf(array.astype(dtype)) & np.isfinite(array)
    if lost.any():
        place = tuple(int(at) for at in np.argwhere(lost)[0])
        raise invalid(name, f"{array[place]} at {place}",
                      f"numbers that fit {dtype.name}, the dtype of the matrix")


def empty_like(data: Array, dtype: Optional["np.dtype[Any]"] = None) -> Array:
    """Memory for a solution, laid out as `data` is."""
    return np.empty(data.shape, data.dtype if dtype is None else dtype)
