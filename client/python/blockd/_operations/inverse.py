"""Blocks of inv(A), and samples of N(0, inv(A)). Internal; see _calls.py."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from blockd import errors, results
from blockd._arrays import Array, without_rows
from blockd._calls import Core, Operation
from blockd._operations import chunked as _chunked
from blockd._operations.held import Held, Names, on_held
from blockd._options import choice, priority_class, uint64
from blockd.v1 import blockd_pb2 as pb

_PARTS = {"blocks": pb.DIAGONAL_BLOCKS, "diagonal": pb.DIAGONAL,
          "tridiagonal": pb.TRIDIAGONAL_BLOCKS}


def selected_inverse(core: Core, held: Held, parts: str, first: int, count: Optional[int],
                     border: bool, priority: str, timeout: Optional[float]) -> Operation[Any]:
    N, n = held.shape.num_blocks, held.shape.block_size
    kind = choice("parts", parts, _PARTS)
    if not 0 <= first < N:
        raise errors.invalid("first", first, f"0 to {N - 1}")
    blocks = N - first if count is None else count
    if not 1 <= blocks <= N - first:
        raise errors.invalid("count", blocks, f"1 to {N - first}, what there is from {first} on")
    if border and not held.shape.arrow_size:
        raise errors.invalid("border", border, "False of a handle without a border")
    request = pb.SelectedInverseRequest(parts=kind, first_block=first, num_blocks=blocks,
                                        border=border, priority=priority_class(priority))
    diagonal = _room(held, blocks, n) if parts == "diagonal" else _room(held, blocks, n, n)
    coupling = _room(held, blocks - 1 if parts == "tridiagonal" else 0, n, n)
    p = held.shape.arrow_size if border else 0
    columns, corner = _room(held, p, blocks, n), _room(held, p, p)
    rooms = [diagonal, coupling, columns, corner]

    def call(handle: bytes, system: int) -> _chunked.Call:
        asked = pb.SelectedInverseRequest(handle=handle)
        asked.MergeFrom(request)

        def room(head: Any) -> "list[Array]":
            found = [array[system] for array in rooms]
            _chunked.check(head, num_blocks=blocks, block_size=n, scalar=_scalar(held),
                           diagonal_bytes=found[0].nbytes, coupling_bytes=found[1].nbytes,
                           border_bytes=found[2].nbytes, corner_bytes=found[3].nbytes)
            return found

        return _one_message("SelectedInverse", asked, pb.SelectedInverseHead, room)

    yield from _each_system(core, held, timeout, call, rooms)
    if held.shape.padding:
        diagonal = _without_padding(held, parts, first + blocks == N, diagonal, coupling, columns)
    found: Any = _unless_batched(held, diagonal)
    # Columns come first on the wire; the diagonal blocks and the corner are symmetric.
    if parts == "tridiagonal":
        found = results.Tridiagonal(found, _unless_batched(held, coupling.swapaxes(-1, -2)))
    if not border:
        return found
    return results.Arrowhead(found, _unless_batched(held, np.moveaxis(columns, 1, -1)),
                             _unless_batched(held, corner))


def _without_padding(held: Held, parts: str, to_the_end: bool, diagonal: Array, coupling: Array,
                     columns: Array) -> Array:
    """Zeros in place of the padding's part of the last blocks; variances without it, flat."""
    k = held.shape.padding if to_the_end else 0
    if parts == "diagonal":
        flat: Array = diagonal.reshape(len(diagonal), -1)
        diagonal = flat[:, :flat.shape[1] - k]
    elif k:
        diagonal[:, -1, -k:, :] = diagonal[:, -1, :, -k:] = 0
    if k:
        coupling[:, -1:, :, -k:] = 0  # columns come first
        columns[:, :, -1, -k:] = 0
    return diagonal


def sample(core: Core, held: Held, num_samples: int, seed: int, first_sample: int, priority: str,
           timeout: Optional[float]) -> Operation[Array]:
    if num_samples < 1:
        raise errors.invalid("num_samples", num_samples, "at least 1")
    uint64("seed", seed)
    uint64("first_sample", first_sample)
    uint64("first_sample", first_sample + held.shape.systems * num_samples - 1)
    shape = held.shape
    samples = _room(held, num_samples, *(
        (shape.num_blocks, shape.block_size) if shape.by_blocks else (shape.wire_rows,)))

    def call(handle: bytes, system: int) -> _chunked.Call:
        asked = pb.SampleRequest(
            handle=handle, seed=seed, first_sample=first_sample + system * num_samples,
            num_samples=num_samples, priority=priority_class(priority))

        def room(head: Any) -> "list[Array]":
            _chunked.check(head, num_samples=num_samples, num_rows=held.shape.wire_rows,
                           scalar=_scalar(held), samples_bytes=samples[system].nbytes)
            return [samples[system]]

        return _one_message("Sample", asked, pb.SampleHead, room)

    yield from _each_system(core, held, timeout, call, [samples])
    return _unless_batched(held, without_rows(samples, shape.hidden))


def _room(held: Held, *shape: int) -> Array:
    return np.empty((held.shape.systems, *shape), held.shape.dtype)


def _unless_batched(held: Held, array: Array) -> Array:
    found: Array = array if held.shape.batched else array[0]
    return found


def _scalar(held: Held) -> int:
    return int(pb.FLOAT32 if held.shape.dtype.itemsize == 4 else pb.FLOAT64)


def _one_message(method: str, request: Any, head: Any,
                 room: "Callable[[Any], list[Array]]") -> _chunked.Call:
    return _chunked.Call(method, lambda: iter((request.SerializeToString(),)), head, room)


def _each_system(core: Core, held: Held, timeout: Optional[float],
                 call: Callable[[bytes, int], _chunked.Call], outcome: "list[Array]") -> Operation[None]:
    """One call for each system; those that failed have NaN."""
    deadline = core.deadline(timeout)

    def all_of(names: Names) -> Operation[None]:
        for system, handle in enumerate(names.handles):
            if handle:
                yield from _chunked.ask(core, call(handle, system), deadline, names.route,
                                        held.healer is not None)
            else:
                for array in outcome:
                    array[system] = np.nan

    yield from on_held(core, held, deadline, all_of)
