"""A linear Gaussian model and its series, between the caller's arrays and the wire. Internal."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np

from blockd import _wire
from blockd._arrays import Array, as_real_array, pieces
from blockd.errors import invalid
from blockd.v1 import blockd_pb2 as pb

FLOAT64 = np.dtype("<f8")


def _observations(y: Any) -> Array:
    if is_pandas(y):
        return _of_pandas(y)
    if not isinstance(y, np.ma.MaskedArray):
        return as_real_array("y", y)
    filled = np.array(as_real_array("y", y.data), np.float64)
    filled[np.broadcast_to(y.mask, filled.shape)] = np.nan
    return filled


def _of_pandas(y: Any) -> Array:
    from pandas.api import types
    for dtype in [y.dtype] if y.ndim == 1 else y.dtypes:
        if not types.is_numeric_dtype(dtype) or types.is_complex_dtype(dtype):
            raise TypeError(f"y has the dtype {dtype}, expected real numbers")
    return as_real_array("y", y.to_numpy(dtype=np.float64, na_value=np.nan))


def _state_size(F: Array, H: Array) -> int:
    """Of H where F has matrices, else 1: numbers are 1 x 1 matrices."""
    if F.ndim < 2:
        return 1
    return int(H.shape[-1] if H.ndim > 1 else F.shape[-1])


def _part(name: str, value: Any, steps: int, shape: "tuple[int, ...]", last: bool = False) -> Array:
    """(1, *shape) of what is the same at all steps, else (steps, *shape).

    Axes of length 1 may be left out or added. `last`: there may be one matrix more, which is left out.
    """
    array = as_real_array(name, value)
    each = (steps, *shape)
    for given, wanted in ((shape, (1, *shape)), (each, each)):
        if _long_axes(array.shape) == _long_axes(given):
            return array.reshape(wanted)
    if last and _long_axes(array.shape) == _long_axes((steps + 1, *shape)):
        return array.reshape(steps + 1, *shape)[:-1]
    raise invalid(name, f"of shape {array.shape}", f"{shape}, or {each}: one for each step")


def _long_axes(shape: "tuple[int, ...]") -> "tuple[int, ...]":
    return tuple(size for size in shape if size != 1)


def _directions(diffuse: Any, nx: int) -> Array:
    """(nx, q); of a mask of states their unit vectors."""
    if diffuse is None:
        return np.zeros((nx, 0))
    given = np.asarray(diffuse)
    if given.dtype == bool and given.shape == (nx,):
        return np.eye(nx)[:, given]
    array = as_real_array("diffuse", diffuse)
    if given.dtype == bool or array.ndim != 2 or array.shape[0] != nx or not 1 <= array.shape[1] <= nx:
        raise invalid("diffuse", f"of shape {given.shape}", f"a mask of {nx} states, or directions: ({nx}, q)")
    return array


class Model:
    """Checked, with the order in which its scalars travel; nothing was copied but a masked y, or one
    with a forecast.

    T steps of nx states and ny observations, forecasts among them, and K series. A part of it is an
    array whose elements in C order are the wire's.
    """

    def __init__(self, F: Any, Q: Any, H: Any, R: Any, y: Any, c: Any, d: Any, m0: Any, P0: Any,
                 diffuse: Any = None, forecast: int = 0) -> None:
        observed = _observations(y)
        self._labels = y if is_pandas(y) else None
        if forecast < 0:
            raise invalid("forecast", forecast, "0 steps or more")
        if observed.ndim not in (1, 2, 3) or observed.size == 0:
            raise invalid("y", f"of shape {observed.shape}",
                          "(T, ny), (T,) where ny = 1, or (K, T, ny), and not empty")
        axes = observed.ndim
        self.batched = axes == 3
        if observed.ndim == 1:
            observed = observed[:, np.newaxis]
        if not self.batched:
            observed = observed[np.newaxis]
        if forecast > 0:
            nothing = np.full((len(observed), forecast, observed.shape[-1]), np.nan)
            observed = np.concatenate([observed, nothing], axis=1)
        self._index = _longer(self._labels.index, forecast) if self._labels is not None else None
        self.series, self.steps, self.ny = observed.shape
        self.y_shape = {1: observed.shape[1:2], 2: observed.shape[1:], 3: observed.shape}[axes]
        measuring = as_real_array("H", H)
        self.nx = _state_size(as_real_array("F", F), measuring)
        T, nx, ny = self.steps, self.nx, self.ny
        if nx < 1:
            raise invalid("H", f"of shape {measuring.shape}", "at least one state: (ny, nx)")
        self._header = pb.SmoothHeader(num_steps=T, state_size=nx, observation_size=ny,
                                       num_series=self.series)
        self._parts: list[Array] = []
        self._add("transition", _part("F", F, T - 1, (nx, nx), last=True), T - 1)
        self._add("transition_covariance", _part("Q", Q, T - 1, (nx, nx), last=True), T - 1)
        self._add("observation", _part("H", measuring, T, (ny, nx)), T)
        self._add("observation_covariance", _part("R", R, T, (ny, ny)), T)
        if c is not None:
            self._add("transition_offset", _part("c", c, T - 1, (nx,), last=True), T - 1)
        if d is not None:
            self._add("observation_offset", _part("d", d, T, (ny,)), T)
        self._add_prior(m0, P0, diffuse)
        self._parts.append(observed)

    def _add(self, name: str, array: Array, steps: int) -> None:
        # Of no steps nothing is sent, whatever there is.
        each = len(array) == steps or steps == 0
        setattr(self._header, name, pb.PER_STEP if each else pb.CONSTANT)
        if steps > 0:
            self._parts.append(_columns_first(array))

    def _add_prior(self, m0: Any, P0: Any, diffuse: Any) -> None:
        G = _directions(diffuse, self.nx)
        if m0 is None and P0 is None and diffuse is None:
            self._header.diffuse = True
            return
        if m0 is None and P0 is None:
            raise invalid("diffuse", "given", "m0 and P0 with it, of what is known")
        if m0 is None or P0 is None:
            raise invalid("m0" if m0 is None else "P0", "missing", "m0 and P0, or neither: diffuse")
        for name, value, shape in (("m0", m0, (self.nx,)), ("P0", P0, (self.nx, self.nx))):
            part = _part(name, value, 1, shape)
            if not np.isfinite(part).all():
                raise invalid(name, "NaN or infinite", "finite numbers; neither m0 nor P0: diffuse")
            self._parts.append(_columns_first(part))
        self._header.diffuse_columns = G.shape[1]
        if G.size > 0:
            self._parts.append(_columns_first(G[np.newaxis]))

    def messages(self, options: Any, chunk_bytes: int) -> Iterator[bytes]:
        """Of a Smooth; `options` is the message."""
        header = pb.SmoothHeader(options=options)
        header.MergeFrom(self._header)
        yield pb.SmoothRequest(header=header).SerializeToString()
        yield from _wire.chunks((piece for part in self._parts
                                 for piece in pieces(part, FLOAT64, chunk_bytes)), chunk_bytes)

    def is_per_step(self, name: str) -> bool:
        """Of an array of the header."""
        return getattr(self._header, name, pb.CONSTANT) == pb.PER_STEP

    def wire_shape(self, name: str) -> "tuple[int, ...]":
        """(steps, columns, rows) of an array of the header, or (steps, rows) of a vector."""
        nx, ny, T = self.nx, self.ny, self.steps
        moves = name.startswith("transition")
        steps = (T - 1 if moves else T) if self.is_per_step(name) or moves and T == 1 else 1
        rows = ny if name.startswith("observation") else nx
        if name == "observation":
            return (steps, nx, ny)
        return (steps, rows) if name.endswith(("offset", "mean")) else (steps, rows, rows)

    def unbatched(self, array: Optional[Array]) -> Optional[Array]:
        """An answer with K in front, which leaves where y has none."""
        return array if array is None or self.batched else array[0]

    def labelled(self, array: Any, as_y: bool = False) -> Any:
        """What has a row a step, as y is: with the index of a pandas y, and `as_y` its names."""
        if self._labels is None or array is None:
            return array
        import pandas
        index = self._index[:len(array)]
        if not as_y:
            return pandas.Series(array, index) if array.ndim == 1 else pandas.DataFrame(array, index)
        if self._labels.ndim == 1:
            return pandas.Series(array, index, name=self._labels.name)
        return pandas.DataFrame(array, index, self._labels.columns)


def _longer(index: Any, steps: int) -> Any:
    """A pandas index with so many rows more."""
    if steps == 0:
        return index
    import pandas
    if isinstance(index, pandas.RangeIndex):
        return pandas.RangeIndex(index.start, index.stop + steps * index.step, index.step, name=index.name)
    if getattr(index, "freq", None) is None:
        raise invalid("forecast", f"a {type(index).__name__} of y that has no frequency",
                      "dates or periods with a frequency, or a RangeIndex")
    more = index[-1:].append([index[-1:].shift(k) for k in range(1, steps + 1)])
    return index.append(more[1:]).rename(index.name)


def is_pandas(value: Any) -> bool:
    """True for a Series or a DataFrame."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "index")


def _columns_first(array: Array) -> Array:
    """Of vectors (steps, n) and matrices (steps, rows, columns): three axes, as the wire has them."""
    return array[np.newaxis] if array.ndim == 2 else array.swapaxes(1, 2)
