"""From statsmodels: the arrays of a state-space model."""

from __future__ import annotations

from typing import Any, Dict, Optional

import numpy as np

from blockd._arrays import Array
from blockd._operations.model import is_pandas
from blockd.errors import invalid


class StateSpaceModel(Dict[str, Any]):
    """The arguments of `Client.smooth` by name, y among them: `client.smooth(**model)`.

    `state_names`. `loglikelihood_burn`: so many first steps statsmodels leaves out of its
    log-likelihood; `Smoothed.log_likelihood` counts them.
    """

    state_names: "tuple[str, ...]" = ()
    loglikelihood_burn: int = 0


def from_statsmodels(model: Any, params: Any = None) -> StateSpaceModel:
    """The arrays of a state-space model of statsmodels, and how its states begin.

    Args:
        model: an MLEModel (SARIMAX, UnobservedComponents, DynamicFactor, ...), or the results of a fit.
        params: of the model, in the order of its `param_names`; default: the results', or none if the
            model has no parameters.

    A diffuse start is exact, also in part; one that is approximately diffuse is known, with the
    variance that statsmodels gives it. The exact log-likelihood has q / 2 log(2 pi) more than
    statsmodels' for q diffuse elements of x(1). y is pandas' if the model's data are.

    Raises:
        InvalidArgument: without the params of a model that has some; of a model whose scale is
            concentrated out, or whose initial state is that before the first step.
    """
    if hasattr(model, "filter_results"):
        params = model.params if params is None else params
        model = model.model
    if not hasattr(model, "ssm"):
        raise invalid("model", f"a {type(model).__name__}", "an MLEModel of statsmodels, or its results")
    if params is None and len(model.param_names) > 0:
        raise invalid("params", "missing", f"values of {', '.join(model.param_names)}")
    if params is not None:
        model.update(np.asarray(params))
    space = model.ssm
    if space.filter_concentrated:
        raise invalid("model", "with its scale concentrated out", "concentrate_scale=False")
    if space.timing_init_filtered:
        raise invalid("model", "with the state before the first step", "timing_init_predicted")
    found = StateSpaceModel(
        F=_matrices(space.transition), Q=_noise(space), H=_matrices(space.design),
        R=_matrices(space.obs_cov), c=_vectors(space.state_intercept),
        d=_vectors(space.obs_intercept), y=_series(model), **_initial(space))
    found.state_names = tuple(model.state_names)
    found.loglikelihood_burn = int(space.loglikelihood_burn)
    return found


def _matrices(array: Array) -> Array:
    """(rows, columns) or (T, rows, columns), of what has the steps at its end."""
    steps = np.moveaxis(np.array(array, np.float64), -1, 0)
    constant: Array = steps[0] if len(steps) == 1 else steps
    return constant


def _vectors(array: Array) -> Optional[Array]:
    found = _matrices(array[:, np.newaxis])[..., 0]
    return found if found.any() else None


def _noise(space: Any) -> Array:
    B, C = _matrices(space.selection), _matrices(space.state_cov)
    Q: Array = B @ C @ np.swapaxes(B, -1, -2)
    symmetric: Array = (Q + np.swapaxes(Q, -1, -2)) / 2
    return symmetric


def _series(model: Any) -> Any:
    """What is smoothed, which need not be what was given: it may be standardized."""
    y = np.array(model.ssm.endog, np.float64).T
    given = model.data.orig_endog
    if not is_pandas(given) or len(given) != len(y):
        return y
    import pandas
    if given.ndim == 1:
        return pandas.Series(y[:, 0], given.index, name=given.name)
    return pandas.DataFrame(y, given.index, given.columns if given.shape == y.shape else None)


def _initial(space: Any) -> "dict[str, Any]":
    if space.initialization is None:
        raise invalid("model", "without an initialization", "one: model.initialize or model.ssm.initialize")
    mean, infinite, covariance = space.initialization(model=space)
    diffuse = np.diagonal(infinite) != 0
    if diffuse.all():
        return {}
    covariance = np.where(np.logical_or.outer(diffuse, diffuse), 0.0, (covariance + covariance.T) / 2)
    known: "dict[str, Any]" = {"m0": np.array(mean), "P0": covariance}
    return {**known, "diffuse": diffuse} if diffuse.any() else known
