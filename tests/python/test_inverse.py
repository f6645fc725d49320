"""Blocks of inv(A) are those of a dense inverse, and samples have it as their covariance."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import blockd
from support.problems import dense, system

N, n = 7, 3


def blocks_of_inverse(D: Any, E: Any) -> "tuple[Any, Any]":
    Z = np.linalg.inv(dense(D, E)).reshape(len(D), D.shape[1], len(D), D.shape[1]).swapaxes(1, 2)
    i = np.arange(len(D))
    return Z[i, i], Z[i[1:], i[:-1]]


@pytest.mark.parametrize("dtype, error", [("f8", 1e-13), ("f4", 1e-5)])
@pytest.mark.parametrize("first, count", [(0, None), (0, 1), (2, 3), (6, None), (0, 7)])
def test_parts_and_ranges(client: blockd.Client, dtype: str, error: float, first: int, count: Any) -> None:
    D, E = system(N, n)
    diagonal, lower = blocks_of_inverse(D, E)
    end = N if count is None else first + count
    with client.factor(D.astype(dtype), E.astype(dtype)) as A:
        whole = A.selected_inverse(first=first, count=count)
        variances = A.selected_inverse("diagonal", first=first, count=count)
        both = A.selected_inverse("tridiagonal", first=first, count=count)
    assert whole.dtype == variances.dtype == both.lower.dtype == np.dtype(dtype)
    assert whole.shape == (end - first, n, n) and both.lower.shape == (end - first - 1, n, n)
    np.testing.assert_allclose(whole, diagonal[first:end], rtol=0, atol=error)
    np.testing.assert_allclose(both.diagonal, diagonal[first:end], rtol=0, atol=error)
    np.testing.assert_allclose(both.lower, lower[first:end - 1], rtol=0, atol=error)
    np.testing.assert_allclose(variances, np.diagonal(diagonal[first:end], axis1=1, axis2=2), rtol=0, atol=error)


def test_many_chunks(client: blockd.Client) -> None:
    D, E = system(12, 150)  # 2 MiB of diagonal blocks
    diagonal, lower = blocks_of_inverse(D, E)
    with client.factor(D, E) as A:
        found = A.selected_inverse("tridiagonal")
        np.testing.assert_allclose(found.diagonal, diagonal, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.lower, lower, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(A.sample(100, seed=1)[50:52], A.sample(2, seed=1, first_sample=50))


def test_samples(client: blockd.Client) -> None:
    D, E = system(N, n)
    with client.factor(D, E) as A:
        x = A.sample(1000, seed=7)
        assert x.shape == (1000, N, n) and A.sample().shape == (1, N, n)
        whitened = np.linalg.cholesky(dense(D, E)).T @ x.reshape(1000, -1).T
        assert abs(np.cov(whitened) - np.eye(N * n)).max() < 0.25
        np.testing.assert_array_equal(A.sample(1000, seed=7), x)
        assert (A.sample(1000, seed=8) != x).all()


def test_batches(client: blockd.Client) -> None:
    D, E = system(N, n, batch=(3,))
    D[1, 2] = -np.eye(n)
    with client.factor(D, E, partial=True) as A:
        found, x = A.selected_inverse("tridiagonal"), A.sample(2, seed=3, first_sample=5)
        assert found.lower.shape == (3, N - 1, n, n) and x.shape == (3, 2, N, n)
        for k in (0, 2):
            diagonal, lower = blocks_of_inverse(D[k], E[k])
            np.testing.assert_allclose(found.diagonal[k], diagonal, rtol=0, atol=1e-12)
            np.testing.assert_allclose(found.lower[k], lower, rtol=0, atol=1e-12)
            with client.factor(D[k], E[k]) as one:
                np.testing.assert_array_equal(x[k], one.sample(2, seed=3, first_sample=5 + 2 * k))
        assert np.isnan(found.diagonal[1]).all() and np.isnan(found.lower[1]).all() and np.isnan(x[1]).all()


@pytest.mark.parametrize("field, ask", [
    ("parts", lambda A: A.selected_inverse("upper")), ("first", lambda A: A.selected_inverse(first=N)),
    ("first", lambda A: A.selected_inverse(first=-1)), ("count", lambda A: A.selected_inverse(count=0)),
    ("count", lambda A: A.selected_inverse(first=1, count=N)), ("num_samples", lambda A: A.sample(0)),
    ("seed", lambda A: A.sample(seed=-1)), ("first_sample", lambda A: A.sample(2, first_sample=2**64 - 1)),
    ("priority", lambda A: A.sample(priority="first"))])
def test_what_makes_no_sense_is_refused(client: blockd.Client, field: str, ask: Any) -> None:
    with client.factor(*system(N, n)) as A:
        with pytest.raises(blockd.InvalidArgument) as caught:
            ask(A)
    assert caught.value.field == field
    with pytest.raises(blockd.HandleNotFound):
        A.sample()


def test_the_twin(server: blockd.LocalServer) -> None:
    async def work() -> None:
        D, E = system(N, n)
        async with blockd.aio.connect(server.target) as client, await client.factor(D, E, heal=True) as A:
            await (await client.adopt(A.ids[0])).info()
            np.testing.assert_allclose(await A.selected_inverse(), blocks_of_inverse(D, E)[0], rtol=0, atol=1e-12)
            assert (await A.sample(4)).shape == (4, N, n)

    asyncio.run(work())
