"""Smoothing agrees with the textbook's filter and backward pass, whatever is missing or kept."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import blockd
from support import kalman
from test_arrays import LAYOUTS

T, nx, ny = 40, 3, 2
NILE: "dict[str, Any]" = {"F": 1, "Q": 1469.1, "H": 1, "R": 15099}


def agree(found: Any, y: Any, expected: kalman.Smoothing, model: Any) -> None:
    same: dict[str, Any] = {"rtol": 0, "atol": 1e-8}
    np.testing.assert_allclose(found.means, expected.means, **same)
    np.testing.assert_allclose(found.covariances, expected.covariances, **same)
    np.testing.assert_allclose(found.lag_one_covariances, expected.lag_one, **same)
    np.testing.assert_allclose(found.standardized_residuals, kalman.residuals(y, expected, **model), **same)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-10)
    assert found.observed == np.isfinite(y).sum()


def test_the_textbook_agrees_with_itself() -> None:
    y, model = kalman.series(T, ny, missing=0.2), kalman.model(T, nx, ny, each=True)
    for one, other in zip(kalman.by_precision(y, **model), kalman.rauch_tung_striebel(y, **model)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("steps", [1, 2, T])
def test_one_series(client: blockd.Client, chunky: blockd.Client, each: bool, missing: float,
                    steps: int) -> None:
    y, model = kalman.series(steps, ny, missing), kalman.model(steps, nx, ny, each=each)
    for one in (client, chunky):
        found = one.smooth(**model, y=y, lag_one=True, residuals=True)
        agree(found, y, kalman.rauch_tung_striebel(y, **model), model)
        assert found.samples is None and found.handles == () and not found.found


def test_diffuse(client: blockd.Client) -> None:
    y, model = kalman.series(T, ny, 0.2), kalman.model(T, nx, ny)
    del model["m0"], model["P0"]
    agree(client.smooth(**model, y=y, lag_one=True, residuals=True), y, kalman.by_precision(y, **model), model)


def test_one_number_a_step(client: blockd.Client) -> None:
    y = np.random.default_rng(0).normal(900, 100, 100)
    y[20:40] = np.nan
    expected = kalman.by_precision(y[:, np.newaxis], **NILE)
    for one in (y, kalman.masked(y, np.isnan(y)), y[:, np.newaxis]):
        found = client.smooth(**NILE, y=one, residuals=True)
        assert found.means.shape == (100, 1) and found.covariances.shape == (100, 1, 1)
        assert found.standardized_residuals.shape == one.shape
        np.testing.assert_allclose(found.means, expected.means, rtol=1e-10)
        np.testing.assert_allclose(found.covariances, expected.covariances, rtol=1e-10)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_arrays_are_read_by_their_indices(client: blockd.Client, layout: str) -> None:
    y, model = kalman.series(8, ny), kalman.model(8, nx, ny, each=True)
    expected = kalman.rauch_tung_striebel(y, **model)
    found = client.smooth(**{name: LAYOUTS[layout](one) for name, one in model.items()}, y=LAYOUTS[layout](y))
    np.testing.assert_allclose(found.means, expected.means, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.covariances, expected.covariances, rtol=0, atol=1e-8)


def test_series_share_what_is_missing_alike(client: blockd.Client, chunky: blockd.Client) -> None:
    model = kalman.model(T, nx, ny)
    y = np.array([kalman.series(T, ny, 0.3, seed) for seed in (1, 2, 3, 4)])
    y[2] = np.where(np.isnan(y[0]), np.nan, 7)  # the same are missing
    for one in (client, chunky):
        found = one.smooth(**model, y=y, lag_one=True, residuals=True, num_samples=2)
        assert found.system_of_series == (0, 1, 0, 2) and found.samples.shape == (4, 2, T, nx)
        for k in range(4):
            expected = kalman.rauch_tung_striebel(y[k], **model)
            np.testing.assert_allclose(found.means[k], expected.means, rtol=0, atol=1e-8)
            np.testing.assert_allclose(found.covariances[k], expected.covariances, rtol=0, atol=1e-8)
            np.testing.assert_allclose(found.lag_one_covariances[k], expected.lag_one, rtol=0, atol=1e-8)
            assert found.log_likelihood[k] == pytest.approx(expected.log_likelihood, rel=1e-10)
            assert found.observed[k] == np.isfinite(y[k]).sum()
        same = one.smooth(**model, y=np.repeat(y[:1], 3, axis=0), covariances="diagonal")
        assert same.covariances.shape == (3, T, nx) and same.covariances.strides[0] == 0
        np.testing.assert_allclose(same.covariances[1], np.diagonal(found.covariances[0], axis1=1, axis2=2),
                                   rtol=0, atol=1e-12)


def test_what_is_not_asked_for_is_not_there(client: blockd.Client) -> None:
    found = client.smooth(**kalman.model(T, nx, ny), y=kalman.series(T, ny), covariances=None,
                          log_likelihood=False)
    assert found.means.shape == (T, nx)
    assert (found.covariances, found.lag_one_covariances, found.log_likelihood,
            found.standardized_residuals, found.samples) == (None,) * 5


def test_samples_have_the_covariance(client: blockd.Client) -> None:
    y, model = kalman.series(5, ny, 0.2), kalman.model(5, nx, ny)
    found = client.smooth(**model, y=y, num_samples=1000, seed=5)
    z = (found.samples - found.means) / np.sqrt(np.diagonal(found.covariances, axis1=1, axis2=2))
    assert abs(z.mean(0)).max() < 0.2 and abs(z.var(0) - 1).max() < 0.3
    again = client.smooth(**model, y=y, num_samples=10, seed=5)
    np.testing.assert_array_equal(again.samples, found.samples[:10])


def test_a_kept_factorization_is_found(client: blockd.Client) -> None:
    y, model = kalman.series(T, ny, 0.2), kalman.model(T, nx, ny, seed=3)
    first = client.smooth(**model, y=y, keep=True, lease=30.0)
    assert not first.found and len(first.handles) == 1
    again = client.smooth(**model, y=2 * y, keep=True)
    assert again.found and again.handles[0] is first.handles[0]
    (A,) = again.handles
    del first
    gc.collect()
    np.testing.assert_allclose(again.means, kalman.rauch_tung_striebel(2 * y, **model).means, rtol=0, atol=1e-8)
    np.testing.assert_allclose(A.selected_inverse(), again.covariances, rtol=0, atol=1e-10)
    assert A.sample(3).shape == (3, T, nx)
    A.release()
    assert not client.smooth(**model, y=y, keep=True).found
    assert not client.smooth(**model, y=y, keep=True).found  # the last one was forgotten


@pytest.mark.parametrize("matrix, step", [("Q", 4), ("R", 5), ("P0", 0)])
def test_a_singular_covariance_is_named(client: blockd.Client, matrix: str, step: int) -> None:
    model = kalman.model(T, nx, ny, each=True)
    (model[matrix] if matrix == "P0" else model[matrix][step])[1, 1] = -1
    with pytest.raises(blockd.SingularCovariance) as caught:
        client.smooth(**model, y=kalman.series(T, ny))
    assert (caught.value.matrix, caught.value.step, caught.value.row) == (matrix[0], step, 1)
    assert isinstance(caught.value, (ValueError, np.linalg.LinAlgError))


@pytest.mark.parametrize("name, field", [("y", "chunk"), ("F", "header.transition"), ("m0", "m0"), ("P0", "P0")])
def test_what_is_not_finite_is_refused(client: blockd.Client, name: str, field: str) -> None:
    given = {**kalman.model(T, nx, ny), "y": kalman.series(T, ny)}
    given[name].flat[1] = np.inf
    with pytest.raises(blockd.InvalidArgument) as caught:
        client.smooth(**given)
    assert caught.value.field == field


@pytest.mark.parametrize("matrix", ["Q", "R", "P0"])
def test_a_factor_in_place_of_a_covariance_is_named(client: blockd.Client, matrix: str) -> None:
    given = {**kalman.model(T, nx, ny), "y": kalman.series(T, ny)}
    given[matrix] = np.linalg.cholesky(given[matrix]).T
    with pytest.raises(blockd.InvalidArgument, match=f"{matrix[0]} of step 0 .*symmetric"):
        client.smooth(**given)


def test_each_series_says_how_it_was_smoothed(client: blockd.Client) -> None:
    y = np.ones((2, 120))
    y[1, 20:] = np.nan  # of an unstable state, which nobody sees then
    found = client.smooth(F=1.25, Q=1.0, H=1.0, R=1.0, y=y[:, :, np.newaxis])
    assert found.form == ("information", "orthogonal")
    assert found.form_reason == ("", "INFORMATION_FORM_INACCURATE")
    assert found.estimated_errors.means.shape == (2,) and (found.estimated_errors.means <= 1e-7).all()
    alone = client.smooth(F=1.0, Q=0.0, H=1.0, R=1.0, y=y[0])
    assert (alone.form, alone.form_reason) == ("orthogonal", "COVARIANCE_IS_SINGULAR")
    assert 0 <= alone.estimated_errors.variances <= 1e-7
    for form in ("information", "orthogonal", "double-double"):
        asked = client.smooth(F=0.5, Q=1.0, H=1.0, R=1.0, y=y[0], form=form)
        assert asked.form == form
        assert asked.form_reason == ("" if form == "information" else "ASKED_FOR")


def test_a_start_that_is_known_in_part(client: blockd.Client) -> None:
    model, y = kalman.model(T, nx, ny, seed=6), kalman.series(T, ny, 0.2)
    for given, G, form in ((np.arange(nx) == 1, np.eye(nx)[:, [1]], "information"),
                           (np.arange(nx)[:, np.newaxis], np.arange(nx)[:, np.newaxis], "orthogonal")):
        found = client.smooth(**model, y=y, diffuse=given)
        large = {**model, "P0": model["P0"] + 1e9 * G @ G.T}
        agreed = kalman.by_precision(y, **large)
        assert found.form == form
        np.testing.assert_allclose(found.means, agreed.means, rtol=0, atol=1e-6)
        assert found.log_likelihood == pytest.approx(agreed.log_likelihood + 0.5 * np.log(2 * np.pi * 1e9), abs=1e-5)
    for wrong in (np.ones(nx), [True], np.ones((nx, nx + 1))):
        with pytest.raises(blockd.InvalidArgument, match="diffuse"):
            client.smooth(**model, y=y, diffuse=wrong)
    with pytest.raises(blockd.InvalidArgument, match="m0 and P0 with it"):
        client.smooth(F=1.0, Q=1.0, H=1.0, R=1.0, y=np.ones(3), diffuse=[True])
    two = client.smooth(F=1.0, Q=1.0, H=np.ones((4, 2)), R=np.eye(2), y=np.ones((4, 2)))  # of one state each step
    assert two.means.shape == (4, 1)


def test_what_nobody_can_smooth_says_why(client: blockd.Client) -> None:
    with pytest.raises(blockd.NotSmoothable) as caught:
        client.smooth(F=1.0, Q=1.0, H=1.0, R=1.0, y=np.full(5, np.nan))
    assert (caught.value.reason, caught.value.directions) == ("NOT_IDENTIFIED", 1)
    with pytest.raises(blockd.NotSmoothable) as caught:
        client.smooth(F=1.0, Q=0.0, H=1.0, R=0.0, y=[1.0, 2.0])
    assert (caught.value.reason, caught.value.step, caught.value.row) == ("CONTRADICTION", 1, 0)
    with pytest.raises(blockd.NotSmoothable) as caught:
        client.smooth(F=1.25, Q=1.0, H=1.0, R=1.0, y=[1.0] * 20 + [np.nan] * 100, form="information")
    assert caught.value.reason == "INACCURATE" and caught.value.means_error > 1e-7


def test_the_twin(server: blockd.LocalServer) -> None:
    async def work() -> None:
        y, model = kalman.series(T, ny, 0.2), kalman.model(T, nx, ny, seed=4)
        async with blockd.aio.connect(server.target) as client:
            found = await client.smooth(**model, y=y, lag_one=True, residuals=True, keep=True)
            agree(found, y, kalman.rauch_tung_striebel(y, **model), model)
            again = await client.smooth(**model, y=y, keep=True)
            assert again.found and again.handles[0] is found.handles[0]
            assert await again.handles[0].release() > 0

    asyncio.run(work())
