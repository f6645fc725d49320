"""What a filter, a forecast and disturbances say, beside statsmodels."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pandas as pd
import pytest

import blockd
from test_state_space import EXACT, MODELS, S, U, Y

ALL = ("filtered_means", "filtered_covariances", "predicted_means", "predicted_covariances", "innovations",
       "log_likelihood_steps", "observation_means", "observation_covariances", "state_disturbances",
       "observation_disturbances", "standardized_state_disturbances",
       "standardized_observation_disturbances")


def close(found: Any, expected: Any, scale: Any) -> None:
    np.testing.assert_allclose(found / scale, expected / scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_of_statsmodels(client: blockd.Client, name: str) -> None:
    model = MODELS[name]()
    params = np.abs(model.start_params) * 0.5 + 0.05
    expected = model.smooth(params)
    given = blockd.from_statsmodels(expected)
    found = client.smooth(**given, outputs=ALL)
    assert found.form != "information" and found.form_reason == "HAS_OUTPUTS"
    assert set(found.outputs) == set(ALL)
    out = found.outputs
    # Behind the diffuse start, in which statsmodels has finite parts alone.
    burn = expected.nobs_diffuse
    P = np.moveaxis(expected.predicted_state_cov, 2, 0)[:-1]
    scale = np.sqrt(np.diagonal(P[burn:], axis1=1, axis2=2).max(0)) + 1e-3
    close(out["predicted_means"][burn:], expected.predicted_state.T[burn:-1], scale)
    close(out["predicted_covariances"][burn:], P[burn:], np.outer(scale, scale))
    close(out["filtered_means"][burn:], expected.filtered_state.T[burn:], scale)
    close(out["filtered_covariances"][burn:], np.moveaxis(expected.filtered_state_cov, 2, 0)[burn:],
          np.outer(scale, scale))
    np.testing.assert_allclose(out["log_likelihood_steps"][burn:], expected.llf_obs[burn:], rtol=1e-6, atol=1e-6)
    assert out["log_likelihood_steps"].sum() == pytest.approx(found.log_likelihood, abs=1e-6)
    innovations = out["innovations"].reshape(-1, model.k_endog)
    seen = np.isfinite(model.endog)[burn:]
    assert np.isnan(innovations[burn:][~seen]).all()
    np.testing.assert_allclose(innovations[burn:][seen], expected.standardized_forecasts_error.T[burn:][seen],
                               atol=1e-5)
    disturbances(out, expected)


def disturbances(out: "dict[str, Any]", expected: Any) -> None:
    model = expected.model
    selection = model.ssm.selection[:, :, 0]
    w = (selection @ expected.smoothed_state_disturbance).T[:-1]
    np.testing.assert_allclose(out["state_disturbances"], w, atol=1e-5)
    Q = selection @ model.ssm.state_cov[:, :, 0] @ selection.T
    left = selection @ np.moveaxis(expected.smoothed_state_disturbance_cov, 2, 0) @ selection.T
    own = np.diagonal(Q - left, axis1=1, axis2=2)[:-1]
    told = own > 1e-6 * np.maximum(np.diagonal(Q), 1e-12)  # statsmodels' is a difference
    found = out["standardized_state_disturbances"]
    np.testing.assert_allclose(found[told], (w / np.sqrt(np.where(told, own, 1)))[told], rtol=1e-4, atol=1e-4)
    v = expected.smoothed_measurement_disturbance.T
    seen = np.isfinite(out["observation_disturbances"].reshape(v.shape))
    np.testing.assert_allclose(out["observation_disturbances"].reshape(v.shape)[seen], v[seen], atol=1e-5)


@pytest.mark.parametrize("steps", [1, 7])
def test_a_forecast(client: blockd.Client, steps: int) -> None:
    dates = pd.date_range("2001-01", periods=len(Y), freq="MS")
    model = U(pd.Series(Y, dates, name="level"), "lltrend", **EXACT)
    expected = model.smooth([1.0, 2.0, 0.5])
    found = client.smooth(**blockd.from_statsmodels(expected), forecast=steps, covariances="diagonal",
                          outputs=["observation_means", "observation_covariances"])
    ahead = expected.get_forecast(steps)
    means, variances = found.outputs["observation_means"], found.outputs["observation_covariances"]
    assert found.means.shape == (len(Y) + steps, 2) and means.name == "level"
    pd.testing.assert_index_equal(means.index[-steps:], ahead.predicted_mean.index)
    np.testing.assert_allclose(means[-steps:], ahead.predicted_mean, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(variances[-steps:]), ahead.se_mean, rtol=1e-9)
    assert found.outputs["observation_means"].index.freq == dates.freq


def test_indices_that_go_on(client: blockd.Client) -> None:
    local: "dict[str, Any]" = {"F": 1, "Q": 1, "H": 1, "R": 1, "forecast": 2}
    for index, last in ((pd.RangeIndex(80, name="n"), 81), (pd.RangeIndex(0, 160, 2), 162),
                        (pd.period_range("2001Q1", periods=80, freq="Q"), pd.Period("2021Q2", "Q"))):
        found = client.smooth(y=pd.Series(Y, index), **local)
        assert len(found.means) == 82 and found.means.index[-1] == last
        assert found.means.index.name == index.name
    with pytest.raises(blockd.InvalidArgument, match="frequency"):
        client.smooth(y=pd.Series(Y, np.arange(80.0)), **local)
    assert client.smooth(y=Y, **local).means.shape == (82, 1)
    with pytest.raises(blockd.InvalidArgument, match="forecast"):
        client.smooth(F=1, Q=1, H=1, R=1, y=Y, forecast=-1)


def test_shapes_of_many_series(client: blockd.Client) -> None:
    y = np.random.default_rng(5).normal(size=(3, 20, 2))
    y[1, 4] = np.nan
    model: "dict[str, Any]" = {"F": 0.9 * np.eye(3), "Q": np.eye(3), "H": np.ones((2, 3)), "R": np.eye(2), "y": y,
                               "m0": np.zeros(3), "P0": np.eye(3)}
    for covariances, x, v in (("full", (3, 3), (2, 2)), ("diagonal", (3,), (2,))):
        out = client.smooth(**model, outputs=ALL, covariances=covariances, forecast=4).outputs
        for name in ALL:
            rows = {"state_disturbances": 23, "standardized_state_disturbances": 23}.get(name, 24)
            own: "tuple[int, ...]" = (2,) if name == "innovations" or "observation" in name else (3,)
            if name.endswith("covariances"):
                own = v if "observation" in name else x
            assert out[name].shape == ((3, 24) if name == "log_likelihood_steps" else (3, rows, *own)), name
        assert np.isnan(out["innovations"][1, 4]).all() and np.isfinite(out["innovations"][0, :20]).all()


def test_what_is_not_known_yet(client: blockd.Client) -> None:
    found = client.smooth(F=[[1, 1], [0, 1]], Q=np.eye(2), H=[[1, 0]], R=1, y=Y, outputs=ALL[:5])
    x, P = found.outputs["predicted_means"], found.outputs["predicted_covariances"]
    assert np.isnan(x[:2]).all() and np.isinf(np.diagonal(P[1])).all() and np.isnan(P[1, 0, 1])
    assert np.isfinite(x[2:]).all() and np.isfinite(P[2:]).all()
    x, P = found.outputs["filtered_means"], found.outputs["filtered_covariances"]
    assert x[0, 0] == pytest.approx(Y[0]) and np.isnan(x[0, 1]) and P[0, 0, 0] == 1 and np.isinf(P[0, 1, 1])
    assert np.isnan(found.outputs["innovations"][:2]).all() and np.isfinite(found.outputs["innovations"][2:]).all()


def test_asynchronous_clients_have_them(server: blockd.LocalServer) -> None:
    async def smooth() -> Any:
        async with blockd.aio.connect(server.target) as client:
            return await client.smooth(F=1, Q=1, H=1, R=1, y=Y, outputs=["innovations"], forecast=1)
    assert asyncio.run(smooth()).outputs["innovations"].shape == (81,)


def test_what_is_refused(client: blockd.Client) -> None:
    local: "dict[str, Any]" = {"F": 1, "Q": 1, "H": 1, "R": 1, "y": Y}
    for outputs in ("innovations", ["innovation"], ["smooth_output_unspecified"]):
        with pytest.raises(blockd.InvalidArgument, match="outputs"):
            client.smooth(**local, outputs=outputs)
    wrong: "list[dict[str, Any]]" = [{"keep": True}, {"form": "information"}]
    for more in wrong:
        with pytest.raises(blockd.InvalidArgument, match="output"):
            client.smooth(**local, outputs=["innovations"], **more)
    assert client.smooth(**local, outputs=["innovations", "innovations"]).outputs.keys() == {"innovations"}


def test_a_break_and_an_outlier_stand_out(client: blockd.Client) -> None:
    y = np.random.default_rng(6).normal(size=200)
    y[120] += 8
    y[60:] += 20
    out = client.smooth(F=1, Q=0.1, H=1, R=1, y=y, outputs=ALL).outputs
    assert np.argmax(np.abs(out["standardized_state_disturbances"][:, 0])) == 59  # from 59 to 60
    assert np.argmax(np.abs(np.delete(out["standardized_observation_disturbances"], range(55, 65)))) == 110


def test_the_score_is_the_slope_of_the_log_likelihood(client: blockd.Client) -> None:
    rng = np.random.default_rng(7)
    model: "dict[str, Any]" = {
        "F": np.array([[0.9, 0.2], [0.0, 0.7]]), "Q": np.array([[1.0, 0.3], [0.3, 0.5]]),
        "H": rng.normal(size=(30, 2, 2)), "R": np.diag([1.0, 2.0]), "c": np.zeros(2), "d": np.ones((30, 2)),
        "m0": np.zeros(2), "P0": np.eye(2), "y": rng.normal(size=(30, 2))}
    arrays = {"F": "transition", "Q": "transition_covariance", "H": "observation", "R": "observation_covariance",
              "c": "transition_offset", "d": "observation_offset", "m0": "initial_mean", "P0": "initial_covariance"}
    out = client.smooth(**model, outputs=(f"score_{name}" for name in arrays.values())).outputs
    for name, full in arrays.items():
        score = out[f"score_{full}"]
        assert score.shape == model[name].shape
        change = rng.normal(size=score.shape)
        if name in ("Q", "R", "P0"):
            change = change + change.T
        sides = [client.smooth(**{**model, name: model[name] + h * change}).log_likelihood for h in (1e-4, -1e-4)]
        assert (sides[0] - sides[1]) / 2e-4 == pytest.approx((score * change).sum(), rel=1e-5), name
    del model["c"]
    assert client.smooth(**model, outputs=["score_transition_offset"]).outputs["score_transition_offset"].shape == (2,)
    many = {**model, "y": np.stack([model["y"], 2 * model["y"]])}
    assert client.smooth(**many, outputs=["score_observation"]).outputs["score_observation"].shape == (2, 30, 2, 2)


def test_states_that_others_told_are_no_longer_diffuse(client: blockd.Client) -> None:
    rng = np.random.default_rng(8)
    F, H = np.kron(np.eye(2), [[1, 1], [0, 1]]), np.kron(np.eye(2), [[1, 0]])
    y = rng.normal(size=(20, 2))
    y[:8, 1] = y[8:, 0] = np.nan
    G = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    model: "dict[str, Any]" = {"F": F, "Q": np.eye(4), "H": H, "R": np.eye(2), "y": y,
                               "outputs": ["filtered_means", "filtered_covariances"]}
    whole = client.smooth(**model).outputs
    part = client.smooth(**model, m0=np.zeros(4), P0=np.zeros((4, 4)), diffuse=G).outputs
    assert np.isfinite(whole["filtered_means"][2:8, :2]).all() and np.isnan(whole["filtered_means"][2:8, 2:]).all()
    for name in ("filtered_means", "filtered_covariances"):
        np.testing.assert_allclose(part[name], whole[name], rtol=1e-6, atol=1e-6)


def test_an_arma_in_companion_form(client: blockd.Client) -> None:
    expected = S(Y - Y.mean(), order=(2, 0, 2)).smooth([0.5, 0.2, 0.3, 0.1, 1.0])
    out = client.smooth(**blockd.from_statsmodels(expected), outputs=ALL).outputs
    np.testing.assert_allclose(out["innovations"][:, 0], expected.standardized_forecasts_error[0], atol=1e-6)
