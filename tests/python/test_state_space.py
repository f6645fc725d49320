"""Models of statsmodels, and what pandas brings."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import numpy as np
import pandas as pd
import pytest

import blockd

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import statsmodels.api as sm

Y = np.cumsum(np.random.default_rng(0).normal(size=80)) + 50
U, S = sm.tsa.UnobservedComponents, sm.tsa.SARIMAX


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def with_gaps(y: Any) -> Any:
    y = np.array(y, float)
    y[20:26] = np.nan
    return y


EXACT = {"use_exact_diffuse": True}
MODELS: "dict[str, Callable[[], Any]]" = {
    "local level": lambda: U(with_gaps(Y), "llevel", **EXACT),
    "trend": lambda: U(Y, "lltrend", **EXACT),
    "smooth trend": lambda: U(Y, "strend", **EXACT),
    "seasonal": lambda: U(Y, "llevel", seasonal=4, **EXACT),
    "level and AR(2)": lambda: U(with_gaps(Y), "llevel", autoregressive=2, **EXACT),
    "cycle": lambda: U(Y, "llevel", cycle=True, stochastic_cycle=True, damped_cycle=True, **EXACT),
    "regression of the observation": lambda: U(Y, "llevel", exog=drawn(1, 80), **EXACT),
    "AR(1) and noise": lambda: S(Y, order=(1, 0, 0), measurement_error=True),
    "ARMA(2, 1)": lambda: S(with_gaps(Y), order=(2, 0, 1)),
    "ARIMA(0, 1, 1)": lambda: S(Y, order=(0, 1, 1), **EXACT),
    "airline": lambda: S(Y, order=(0, 1, 1), seasonal_order=(0, 1, 1, 4), **EXACT),
    "regression of states": lambda: S(Y, exog=drawn(2, 80), order=(1, 0, 0), mle_regression=False,
                                      **EXACT),
    "VAR(1)": lambda: sm.tsa.VARMAX(drawn(3, 80, 2), order=(1, 0), measurement_error=True),
    "dynamic factor": lambda: sm.tsa.DynamicFactor(drawn(4, 80, 4), k_factors=1, factor_order=2),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_of_statsmodels(client: blockd.Client, name: str) -> None:
    model = MODELS[name]()
    params = np.abs(model.start_params) * 0.5 + 0.05
    expected = model.smooth(params)
    for given in (blockd.from_statsmodels(model, params), blockd.from_statsmodels(expected)):
        found = client.smooth(**given)
        scale = np.sqrt(np.abs(expected.smoothed_state_cov).max((0, 2))) + 1e-3
        np.testing.assert_allclose(found.means / scale, expected.smoothed_state.T / scale, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.covariances / np.outer(scale, scale),
                                   np.moveaxis(expected.smoothed_state_cov, 2, 0) / np.outer(scale, scale),
                                   rtol=0, atol=1e-4)
        diffuse = np.trace(model.ssm.initialization(model=model.ssm)[1])
        assert given.loglikelihood_burn == 0 and len(given.state_names) == model.k_states
        assert found.log_likelihood == pytest.approx(expected.llf + diffuse / 2 * np.log(2 * np.pi), abs=1e-4)


def test_steps_that_are_left_out_are_said() -> None:
    model = U(Y, "lltrend")
    given = blockd.from_statsmodels(model, [1.0, 1.0, 1.0])
    assert given.loglikelihood_burn == 2 and given.state_names == ("level", "trend")
    assert "diffuse" not in given and given["P0"][0, 0] == 1e6


def test_what_has_no_arrays_is_refused() -> None:
    with pytest.raises(blockd.InvalidArgument, match="params"):
        blockd.from_statsmodels(U(Y, "llevel"))
    with pytest.raises(blockd.InvalidArgument, match="concentrate"):
        blockd.from_statsmodels(S(Y, order=(1, 0, 0), concentrate_scale=True), [0.5])
    with pytest.raises(blockd.InvalidArgument, match="MLEModel"):
        blockd.from_statsmodels(Y)


def test_what_a_model_standardizes_is_smoothed(client: blockd.Client) -> None:
    columns = ["a", "b", "c"]
    frame = pd.DataFrame(np.cumsum(drawn(5, 60, 3), 0), pd.period_range("2000-01", periods=60, freq="M"), columns)
    model = sm.tsa.DynamicFactorMQ(frame, factors=1, factor_orders=1, idiosyncratic_ar1=False)
    expected = model.smooth(model.start_params)
    given = blockd.from_statsmodels(model, model.start_params)
    assert list(given["y"].columns) == columns and abs(given["y"].to_numpy().std(0) - 1).max() < 0.02
    found = client.smooth(**given)
    np.testing.assert_allclose(found.means, expected.smoothed_state.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("values, dtype", [
    (["1.5", "2"], "object"), (["a", "b"], "string"), ([1, 2], "complex"), (["2020-01-01", "2020-01-02"], "datetime64[ns]")])
def test_a_series_of_no_numbers_is_refused(client: blockd.Client, values: Any, dtype: str) -> None:
    with pytest.raises(TypeError, match="dtype"):
        client.smooth(F=1.0, Q=1.0, H=1.0, R=1.0, y=pd.Series(values, dtype=dtype))


def test_pandas_come_back(client: blockd.Client) -> None:
    days = pd.date_range("2020-01-01", periods=80, freq="D")
    level: "dict[str, Any]" = {name: 1.0 for name in "FQHR"}
    plain = client.smooth(**level, y=with_gaps(Y), residuals=True, covariances="diagonal")
    found = client.smooth(**level, y=pd.Series(with_gaps(Y), days, name="level"), residuals=True,
                          covariances="diagonal")
    for frame, array in ((found.means, plain.means), (found.covariances, plain.covariances)):
        assert isinstance(frame, pd.DataFrame) and (frame.index == days).all()
        np.testing.assert_array_equal(frame.to_numpy(), array)
    residuals = found.standardized_residuals
    assert isinstance(residuals, pd.Series) and residuals.name == "level" and (residuals.index == days).all()
    np.testing.assert_array_equal(residuals.to_numpy(), plain.standardized_residuals)
    two = pd.DataFrame({"a": Y, "b": with_gaps(Y)}, days).astype("Float64")
    of_two = client.smooth(F=1.0, Q=1.0, H=np.ones((2, 1)), R=np.eye(2), y=two, residuals=True)
    assert list(of_two.standardized_residuals.columns) == ["a", "b"] and of_two.observed == 154
    counts = pd.Series([3, 1, None, 2], dtype="Int64")
    of_counts = client.smooth(**level, y=counts, residuals=True)
    assert of_counts.observed == 3 and np.isnan(of_counts.standardized_residuals[2])
    given = blockd.from_statsmodels(U(pd.Series(Y, days), "llevel", **EXACT), [1.0, 1.0])
    assert (client.smooth(**given).means.index == days).all()


@pytest.mark.parametrize("given, plain", [
    ({"R": np.arange(1.0, 9)}, {"R": np.arange(1.0, 9).reshape(8, 1, 1)}),
    ({"d": np.arange(8.0)}, {"d": np.arange(8.0).reshape(8, 1)}),
    ({"H": np.array([1.0, 2])}, {"H": np.array([[1.0, 2]])}),
    ({"H": np.ones((8, 2))}, {"H": np.ones((8, 1, 2))}),
    ({"F": np.tile(np.eye(2), (8, 1, 1))}, {}),
    ({"c": np.zeros((8, 2)), "Q": np.tile(np.eye(2), (8, 1, 1))}, {}),
    ({"c": np.ones((2, 1))}, {"c": np.ones(2)}),
])
def test_axes_of_one_may_be_left_out(client: blockd.Client, given: Any, plain: Any) -> None:
    model = dict(F=np.eye(2), Q=np.eye(2), H=np.array([[1.0, 1]]), R=1.0, y=Y[:8], m0=np.zeros(2), P0=np.eye(2))
    found, expected = client.smooth(**{**model, **given}), client.smooth(**{**model, **plain})
    np.testing.assert_array_equal(found.means, expected.means)


def with_known(name: str) -> "Callable[[], Any]":
    """A model of a series that statsmodels brings."""
    data = sm.datasets
    nile, sunspots, macro = data.nile, data.sunspots, data.macrodata
    return {
        "Nile, level": lambda: U(nile.load_pandas().data.volume.to_numpy(), "llevel", **EXACT),
        "Nile, trend": lambda: U(nile.load_pandas().data.volume.to_numpy(), "lltrend", **EXACT),
        "carbon dioxide, seasons": lambda: U(
            data.co2.load_pandas().data.co2.to_numpy()[:300], "lltrend",
            freq_seasonal=[{"period": 52.18, "harmonics": 2}], **EXACT),
        "carbon dioxide, airline": lambda: S(data.co2.load_pandas().data.co2.resample("MS").mean(), order=(0, 1, 1),
                                             seasonal_order=(0, 1, 1, 12), **EXACT),
        "sunspots, cycle": lambda: U(sunspots.load_pandas().data.SUNACTIVITY.to_numpy(), "rwalk", cycle=True,
                                     stochastic_cycle=True, damped_cycle=True, **EXACT),
        "sunspots, AR(9)": lambda: S(sunspots.load_pandas().data.SUNACTIVITY.to_numpy(), order=(9, 0, 0), trend="c"),
        "product, ARIMA(1, 1, 1)": lambda: S(np.log(macro.load_pandas().data.realgdp.to_numpy()), order=(1, 1, 1),
                                             trend="c", **EXACT),
        "inflation, coefficients that walk": lambda: S(
            macro.load_pandas().data.infl.to_numpy(), exog=macro.load_pandas().data[["unemp"]].to_numpy(),
            order=(0, 0, 0), mle_regression=False, time_varying_regression=True, **EXACT),
        "sea, level and seasons": lambda: U(elnino(), "llevel", seasonal=12, **EXACT),
        "sea, seasonal ARIMA": lambda: S(elnino(), order=(1, 0, 0), seasonal_order=(1, 1, 0, 12), **EXACT),
    }[name]


def elnino() -> Any:
    return sm.datasets.elnino.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()


@pytest.mark.parametrize("name", [
    "Nile, level", "Nile, trend", "carbon dioxide, seasons", "carbon dioxide, airline", "sunspots, cycle",
    "sunspots, AR(9)", "product, ARIMA(1, 1, 1)", "inflation, coefficients that walk", "sea, level and seasons",
    "sea, seasonal ARIMA"])
def test_a_series_that_was_observed(client: blockd.Client, name: str) -> None:
    model = with_known(name)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params = model.start_params
    expected = model.smooth(params)
    found = client.smooth(**blockd.from_statsmodels(model, params))
    means, variances = np.asarray(found.means), np.einsum("tii->ti", found.covariances)
    # Of states that are nearly known statsmodels has few digits: variances of 2e-10 in place of 3e-13.
    scale = np.sqrt(np.abs(variances)) + 1e-6 * np.abs(means).max()
    np.testing.assert_allclose(means / scale, expected.smoothed_state.T / scale, rtol=0, atol=1e-3)
    diffuse = np.trace(model.ssm.initialization(model=model.ssm)[1])
    assert found.log_likelihood == pytest.approx(expected.llf + diffuse / 2 * np.log(2 * np.pi), rel=1e-6, abs=1e-4)
    assert found.estimated_errors.means <= 1e-7 and found.estimated_errors.variances <= 1e-7
