"""Smoothing of a linear Gaussian model. Internal; see _calls.py."""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, Callable, Generic, Optional, TypeVar

import numpy as np

from blockd import _wire, results
from blockd._arrays import Array, Shape
from blockd._calls import Core, Operation
from blockd._operations import chunked as _chunked
from blockd._operations.factorization import Factorization
from blockd._operations.held import Held
from blockd._operations.model import FLOAT64, Model
from blockd._options import SmoothOptions, form_name
from blockd.errors import reason_name
from blockd.v1 import blockd_pb2 as pb

H = TypeVar("H", bound=Factorization)


def smooth(core: Core, model: Model, options: SmoothOptions) -> Operation[_chunked.Answer]:
    deadline = core.deadline(options.timeout)
    asked = options.proto()
    return (yield from _chunked.ask(core, _chunked.Call(
        "Smooth", lambda: model.messages(asked, core.options.chunk_bytes), pb.SmoothHead,
        lambda head: _room(model, options, head)), deadline))


def _room(model: Model, options: SmoothOptions, head: Any) -> "list[Array]":
    """In the order of the wire; empty for what was not asked for."""
    K, S, T, nx = model.series, head.num_systems, model.steps, model.nx
    systems = list(head.system_of_series)
    if not 1 <= S <= K or len(systems) != K or sorted(set(systems)) != list(range(S)):
        raise _wire.nonsense(f"a head of {S} systems for {len(systems)} series, expected {K}")
    for name, count in (("handle", S if options.keep else 0), ("observed", K), ("system", S),
                        ("log_likelihood", K if options.log_likelihood else 0)):
        if len(getattr(head, name)) != count:
            raise _wire.nonsense(f"a head with {len(getattr(head, name))} of {name}, expected {count}")
    covariance = {"full": (S, T, nx, nx), "diagonal": (S, T, nx), None: (0,)}[options.covariances]
    shapes = {"means": (K, T, nx), "covariances": covariance,
              "lag_one": (S, T - 1, nx, nx) if options.lag_one else (0,),
              "residuals": (K, T, model.ny) if options.residuals else (0,),
              "samples": (K, options.num_samples, T, nx)}
    outputs = [_output_shape(name, model, options, S) for name in options.output_names()]
    _chunked.check(head, **{f"{name}_bytes": math.prod(shape) * FLOAT64.itemsize
                            for name, shape in shapes.items()},
                   output_bytes=[math.prod(shape) * FLOAT64.itemsize for shape in outputs])
    return [np.empty(shape, FLOAT64) for shape in (*shapes.values(), *outputs)]


def _output_shape(name: str, model: Model, options: SmoothOptions, systems: int) -> "tuple[int, ...]":
    K, T = model.series, model.steps
    if name.startswith("score_"):
        return (K, *model.wire_shape(name[len("score_"):]))
    rows = model.ny if _is_of_y(name) else model.nx
    if name == "log_likelihood_steps":
        return (K, T)
    if name.endswith("covariances"):
        return (systems, T, rows) if options.covariances == "diagonal" else (systems, T, rows, rows)
    return (K, T - 1 if "state_disturbances" in name else T, rows)


def _is_of_y(name: str) -> bool:
    return name == "innovations" or "observation" in name


_MATRICES = ("transition", "transition_covariance", "observation", "observation_covariance",
             "initial_covariance")


def _score(model: Model, name: str, array: Array) -> Any:
    """In the shape of the array: one matrix, or one for each step."""
    if name in _MATRICES:
        array = array.swapaxes(-1, -2)
    if not model.is_per_step(name):
        array = array[:, 0] if array.shape[1] > 0 else array
    return model.unbatched(array)


def result(model: Model, options: SmoothOptions, answer: _chunked.Answer,
           handles: "tuple[H, ...]") -> "results.Smoothed[H]":
    head, (means, covariances, lag_one, residuals, samples, *more) = answer.head, answer.arrays
    systems = list(head.system_of_series)

    def series(array: Array, asked: bool) -> Any:
        return model.unbatched(array) if asked else None

    def shared(array: Array, asked: bool) -> Any:
        return series(_of_series(array, systems), asked) if asked else None

    def covariance() -> Any:
        found = shared(covariances, options.covariances is not None)
        return model.labelled(found) if options.covariances == "diagonal" else found

    def output(name: str, array: Array) -> Any:
        if name.startswith("score_"):
            return _score(model, name[len("score_"):], array)
        own = array
        if name.endswith("covariances"):
            own = shared(array, True)
            if options.covariances != "diagonal":
                return own
        else:
            own = series(array, True)
        if _is_of_y(name):
            return model.labelled(own.reshape(model.y_shape), as_y=True)
        return model.labelled(own)

    return results.Smoothed(
        model.labelled(series(means, True)), covariance(),
        shared(lag_one.swapaxes(-1, -2) if options.lag_one else lag_one, options.lag_one),
        _number(model, head.log_likelihood, float) if options.log_likelihood else None,
        model.labelled(residuals.reshape(model.y_shape), as_y=True) if options.residuals else None,
        series(samples, options.num_samples > 0), _number(model, head.observed, int), handles,
        tuple(systems), head.found, head.growth, head.backward_error_bound,
        *_form(model, [head.system[k] for k in systems]),
        {name: output(name, array) for name, array in zip(options.output_names(), more)},
        results.cost(head.cost))


def _form(model: Model, systems: "list[Any]") -> "tuple[Any, Any, results.SmoothErrors]":
    """Of the system of each series: its form, why, and its estimated errors."""
    forms = tuple(form_name(one.form) for one in systems)
    reasons = tuple(reason_name(pb.SmoothedSystem.Reason, one.reason) for one in systems)
    errors = results.SmoothErrors(*(_number(model, [getattr(one, f"{name}_error") for one in systems], float)
                                    for name in results.SmoothErrors._fields))
    return (forms, reasons, errors) if model.batched else (forms[0], reasons[0], errors)


def _of_series(array: Array, systems: "list[int]") -> Array:
    """(S, ...) as (K, ...), without a copy where all or no series share."""
    if len(array) == 1 and len(systems) > 1:
        return np.broadcast_to(array[0], (len(systems), *array.shape[1:]))
    found: Array = array if systems == list(range(len(array))) else array[systems]
    return found


def _number(model: Model, values: Any, kind: Callable[[Any], Any]) -> Any:
    """Of each series."""
    return np.array(values) if model.batched else kind(values[0])


class Kept(Generic[H]):
    """The handles that smoothing returns. Thread-safe.

    A smoothing that finds a factorization names a handle that an earlier one may have returned. Both
    results share one object then, so that it is released when the last of them is forgotten.
    """

    def __init__(self) -> None:
        self._alive: "weakref.WeakValueDictionary[bytes, H]" = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def handles(self, model: Model, answer: _chunked.Answer,
                make: Callable[[Held], H]) -> "tuple[H, ...]":
        shape = Shape(1, False, model.steps, model.nx, FLOAT64)
        with self._lock:
            found = []
            for name in answer.head.handle:
                handle: Optional[H] = self._alive.get(name)
                if handle is None or handle.released:
                    handle = self._alive[name] = make(Held(shape, [name], answer.route))
                found.append(handle)
            return tuple(found)
