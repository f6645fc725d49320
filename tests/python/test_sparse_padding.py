"""Banded matrices of any order: the last block is filled up, and nobody notices."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import blockd
from support.problems import dense
from support.restartable import Restartable

order, p = 11, 3  # of the matrix without its border
rows = order + p
rng = np.random.default_rng(5)
b = rng.standard_normal(order)
sides = rng.standard_normal((order, 3))


def band(order: int, width: int, scale: float = 1.0, seed: int = 0) -> Any:
    """A matrix of all diagonals up to `width`, positive definite."""
    rng = np.random.default_rng(seed)
    below = [rng.uniform(0.5, 1, order - k) for k in range(1, width + 1)]
    offsets = [k for k in range(1, width + 1)]
    A = scipy.sparse.diags([*below, *below], [*offsets, *(-k for k in offsets)], (order, order))
    return (scale * (A + scipy.sparse.diags(rng.uniform(2.5, 4, order) * width))).tocsr()


A = band(order, 2)
whole = A.toarray()
inverse = np.linalg.inv(whole)
D, E = blockd.from_scipy_sparse(A)

# A border of three dense rows.
B = rng.standard_normal((p, order)) / 4
arrow = np.block([[whole, B.T], [B, 8 * np.eye(p)]])


def test_the_matrix_here_is_padded() -> None:
    assert D.shape == (6, 2, 2) and E.shape == (5, 2, 2) and D.padding == 1


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("order", [1, 2, 5, 9, 12, 13, 17, 30, 31, 47])
def test_blocks_are_no_larger_than_the_band(order: int, width: int) -> None:
    width = min(width, order - 1)
    A = band(order, width) if width else scipy.sparse.csr_matrix([[4.0]])
    D, E = blockd.from_scipy_sparse(A)
    N, n, _ = D.shape
    k = getattr(D, "padding", 0)
    assert N * n == order + k and k < n <= max(1, 2 * width) and E.shape == (N - 1, n, n)
    found = dense(np.array(D), E)
    np.testing.assert_array_equal(found[:order, :order], A.toarray())
    assert not found[order:, :order].any()
    padding = found[order:, order:]
    np.testing.assert_array_equal(padding, np.diag(np.diag(padding)))
    assert not k or A.diagonal().min() <= padding[0, 0] <= A.diagonal().max() or padding[0, 0] == 1


@pytest.mark.parametrize("order", [996, 997, 1000, 1001, 4003])
def test_memory_grows_with_the_order(order: int) -> None:
    K = scipy.sparse.diags([1.0, -2, 1], [0, 1, 2], shape=(order - 2, order))
    A = scipy.sparse.eye(order) + 1600 * (K.T @ K)
    D, E = blockd.from_scipy_sparse(A)
    assert D.shape[1] <= 4 and D.nbytes + E.nbytes < 100 * order


def test_a_divisor_that_is_little_larger_needs_no_padding() -> None:
    D, _ = blockd.from_scipy_sparse(band(15, 2))
    assert D.shape == (5, 3, 3) and not hasattr(D, "padding")
    D, _ = blockd.from_scipy_sparse(band(35, 2))  # of 5 and 7
    assert D.shape == (18, 2, 2) and D.padding == 1
    # Blocks as a sparse matrix may have them: their band is almost twice as wide.
    full = scipy.sparse.block_diag([np.ones((4, 4)) + 4 * np.eye(4)] * 6)
    assert blockd.from_scipy_sparse(full)[0].shape == (12, 2, 2)
    chain = scipy.sparse.kron(scipy.sparse.diags([1.0, 12, 1], [-1, 0, 1], (6, 6)), np.ones((4, 4)))
    assert blockd.from_scipy_sparse(chain)[0].shape == (6, 4, 4)


def test_a_matrix_without_a_band_is_refused() -> None:
    n = 100_003
    A = scipy.sparse.eye(n, format="lil")
    A[n - 1, 0] = A[0, n - 1] = 0.5
    with pytest.raises(blockd.InvalidArgument, match="reverse_cuthill_mckee"):
        blockd.from_scipy_sparse(A)
    D, _, border, corner = blockd.from_scipy_sparse(A, arrow_size=1)
    assert D.shape == (n - 1, 1, 1) and border.shape == (1, n - 1) and corner.shape == (1, 1)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_no_norm_grows(client: blockd.Client, scale: float) -> None:
    A = band(order, 2, scale)
    D, E = blockd.from_scipy_sparse(A)
    with client.factor(D, E, logdet=True, condition_estimate=True) as held:
        assert held.logdet == pytest.approx(np.linalg.slogdet(A.toarray())[1], rel=1e-14)
        # An estimate from below, of a matrix whose condition is no other than that of A.
        condition = np.linalg.cond(A.toarray(), 1)
        assert condition / 3 < held.condition_estimate < condition * (1 + 1e-12)


@pytest.mark.parametrize("dtype, error", [("f8", 1e-14), ("f4", 1e-6)])
def test_every_call_has_the_rows_of_the_matrix(client: blockd.Client, chunky: blockd.Client, dtype: str,
                                               error: float) -> None:
    for one in (client, chunky):
        D, E = blockd.from_scipy_sparse(A.astype(dtype))
        found = one.factor_solve(D, E, b, logdet=True, residual=True)
        np.testing.assert_allclose(found.x, inverse @ b, rtol=0, atol=error)
        assert found.x.shape == (order,) and found.x.dtype == np.dtype(dtype)
        assert found.logdet == pytest.approx(np.linalg.slogdet(whole)[1], rel=error)
        with one.factor(D, E, logdet=True, keep_matrix=True) as held:
            assert held.shape == (order, order) and held.padding == 1
            assert (held.num_blocks, held.block_size) == (6, 2)
            assert held.logdet == pytest.approx(np.linalg.slogdet(whole)[1], rel=error)
            for side in (b, sides, sides[:, :1], np.asfortranarray(sides), sides[:, :0]):
                x = held.solve(side)
                assert x.shape == side.shape
                np.testing.assert_allclose(x, inverse @ side, rtol=0, atol=error)
            found = held.solve_with_info(sides, residual=True, max_refinements=2)
            assert found.x.shape == (order, 3) and found.backward_error is not None
            assert found.backward_error < error
            variances = held.selected_inverse("diagonal")
            assert variances.shape == (order,)
            np.testing.assert_allclose(variances, np.diag(inverse), rtol=0, atol=error)
            samples = held.sample(4, seed=1)
            assert samples.shape == (4, order)
            np.testing.assert_array_equal(samples[2:], held.sample(2, seed=1, first_sample=2))
            held.refactor(2 * D, 2 * E, logdet=True)
            assert held.logdet == pytest.approx(np.linalg.slogdet(2 * whole)[1], rel=error)
            np.testing.assert_allclose(held.solve(b), inverse @ b / 2, rtol=0, atol=error)


def test_samples_have_the_covariance(client: blockd.Client) -> None:
    with client.factor(D, E) as held:
        whitened = np.linalg.cholesky(whole).T @ held.sample(1000, seed=7).T
    assert abs(np.cov(whitened) - np.eye(order)).max() < 0.25


@pytest.mark.parametrize("first, count", [(0, None), (0, 5), (3, 3), (5, 1), (5, None)])
def test_blocks_of_the_inverse_are_zero_beyond_the_matrix(client: blockd.Client, first: int, count: Any) -> None:
    Z = np.zeros((12, 12))
    Z[:order, :order] = inverse
    blocks = Z.reshape(6, 2, 6, 2).swapaxes(1, 2)
    end = 6 if count is None else first + count
    at = np.arange(first, end)
    with client.factor(D, E) as held:
        whole = held.selected_inverse("tridiagonal", first=first, count=count)
        diagonal = held.selected_inverse(first=first, count=count)
        variances = held.selected_inverse("diagonal", first=first, count=count)
    np.testing.assert_allclose(whole.diagonal, blocks[at, at], rtol=0, atol=1e-14)
    np.testing.assert_allclose(whole.lower, blocks[at[1:], at[:-1]], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(diagonal, whole.diagonal)
    np.testing.assert_allclose(variances, np.diag(inverse)[2 * first:2 * end], rtol=0, atol=1e-14)
    if end == 6:
        assert not diagonal[-1, 1].any() and not diagonal[-1, :, 1].any() and not whole.lower[-1:, 1].any()


def test_sessions_have_the_rows_of_the_matrix(client: blockd.Client, chunky: blockd.Client) -> None:
    for one in (client, chunky):
        with one.factor(D, E) as held, one.session() as session:
            sent = [session.send(held, side) for side in (b, sides, b)]
            for side, pending in zip((b, sides, b), sent):
                np.testing.assert_allclose(pending.result(), inverse @ side, rtol=0, atol=1e-14)
                assert pending.result().shape == side.shape


@pytest.mark.parametrize("shape", [(order + 1,), (order - 1,), (6, 2), (6, 2, 1), (order, 1, 1), (1, order)])
def test_right_hand_sides_of_other_shapes_are_refused(client: blockd.Client, shape: Any) -> None:
    with client.factor(D, E) as held, client.session() as session:
        expected = rf"expected \({order}\) or \({order}, d\)"
        with pytest.raises(blockd.InvalidArgument, match=expected):
            held.solve(np.ones(shape))
        with pytest.raises(blockd.InvalidArgument, match=expected):
            session.send(held, np.ones(shape))
        with pytest.raises(blockd.InvalidArgument, match=expected):
            client.factor_solve(D, E, np.ones(shape))


@pytest.mark.parametrize("parts", ["blocks", "diagonal", "tridiagonal"])
def test_a_border_comes_after_the_padding(client: blockd.Client, chunky: blockd.Client, parts: str) -> None:
    D, E, rows_below, corner = blockd.from_scipy_sparse(scipy.sparse.csr_matrix(arrow), arrow_size=p)
    assert D.shape == (6, 2, 2) and D.padding == 1 and rows_below.shape == (p, order)
    np.testing.assert_array_equal(rows_below, B)
    side, Z = rng.standard_normal((rows, 2)), np.linalg.inv(arrow)
    for one in (client, chunky):
        found = one.factor_solve(D, E, side, border=rows_below, corner=corner, logdet=True)
        np.testing.assert_allclose(found.x, Z @ side, rtol=0, atol=1e-14)
        assert found.logdet == pytest.approx(np.linalg.slogdet(arrow)[1], rel=1e-14)
        with one.factor(D, E, border=rows_below, corner=corner, logdet=True) as held, one.session() as session:
            assert held.shape == (rows, rows)
            assert held.logdet == pytest.approx(np.linalg.slogdet(arrow)[1], rel=1e-14)
            for right in (side, side[:, 0]):
                np.testing.assert_allclose(held.solve(right), Z @ right, rtol=0, atol=1e-14)
                np.testing.assert_allclose(session.send(held, right).result(), Z @ right, rtol=0, atol=1e-14)
            assert held.sample(5).shape == (5, rows)
            all_of = held.selected_inverse(parts, border=True)
            beside = all_of.border.reshape(-1, p)
            np.testing.assert_allclose(beside[:order], Z[:order, order:], rtol=0, atol=1e-14)
            assert not beside[order:].any()
            np.testing.assert_allclose(all_of.corner, Z[order:, order:], rtol=0, atol=1e-14)
            if parts == "diagonal":
                np.testing.assert_allclose(all_of.blocks, np.diag(Z)[:order], rtol=0, atol=1e-14)
            # A border may also be as wide as the blocks.
            wide = np.pad(rows_below, [(0, 0), (0, 1)])
            for border in (2 * wide, (2 * wide).reshape(p, 6, 2)):
                held.refactor(2 * D, 2 * E, border=border, corner=2 * corner)
                np.testing.assert_allclose(held.solve(side), Z @ side / 2, rtol=0, atol=1e-14)
            wide[0, -1] = 1
            with pytest.raises(blockd.InvalidArgument, match="padded"):
                held.refactor(D, E, border=wide, corner=corner)


def test_a_factorization_that_heals_is_padded_again(tmp_path: Path) -> None:
    with Restartable(tmp_path, "--device_memory=64MiB") as server, server.connect() as client:
        heals: "list[Any]" = [True, lambda: (D, E)]
        for heal in heals:
            held = client.factor(D, E, heal=heal)
            server.restart()
            np.testing.assert_allclose(held.solve(b), inverse @ b, rtol=0, atol=1e-14)
            server.restart()
            with client.session() as session:
                np.testing.assert_allclose(session.send(held, b).result(), inverse @ b, rtol=0, atol=1e-14)
            assert held.restores == 2


def test_coroutines_have_the_rows_of_the_matrix(server: blockd.LocalServer) -> None:
    async def work() -> None:
        async with blockd.aio.connect(server.target) as client, client.session() as session:
            async with await client.factor(D, E, logdet=True) as held:
                assert held.logdet == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-14)
                np.testing.assert_allclose(await held.solve(sides), inverse @ sides, rtol=0, atol=1e-14)
                np.testing.assert_allclose(await (await session.send(held, b)), inverse @ b, rtol=0, atol=1e-14)
                assert (await held.sample(2)).shape == (2, order)
                assert (await held.selected_inverse("diagonal")).shape == (order,)
                twin = await client.adopt(held.ids[0], padding=held.padding)
                np.testing.assert_array_equal(await twin.solve(b), await held.solve(b))
                await twin.release()
            found = await client.factor_solve(D, E, b)
            np.testing.assert_allclose(found.x, inverse @ b, rtol=0, atol=1e-14)

    asyncio.run(work())


def test_an_adopted_handle_is_told_of_the_padding(client: blockd.Client) -> None:
    held = client.factor(D, E)
    for wrong in (-1, 2):
        with pytest.raises(blockd.InvalidArgument) as caught:
            client.adopt(held.ids[0], padding=wrong)
        assert caught.value.field == "padding"
    assert client.adopt(held.ids[0], held.route).shape == (order + 1, order + 1)
    again = client.factor(D, E)
    with client.adopt(again.ids[0], again.route, padding=again.padding) as twin:
        assert twin.shape == (order, order)
        np.testing.assert_allclose(twin.solve(b), inverse @ b, rtol=0, atol=1e-14)


def test_a_preconditioner_has_the_rows_of_the_matrix(client: blockd.Client) -> None:
    with client.factor(D, E) as held:
        M = held.linear_operator()
        assert M.shape == (order, order)
        np.testing.assert_allclose(M @ whole, np.eye(order), rtol=0, atol=1e-14)


def test_copies_are_padded_and_other_shapes_are_not(client: blockd.Client) -> None:
    copies = [D.copy(), D.astype("f4"), D.copy("F"), D + 0.0, 1 * D, D.swapaxes(1, 2), copy.copy(D),
              copy.deepcopy(D), pickle.loads(pickle.dumps(D))]
    for one in copies:
        np.testing.assert_allclose(client.factor_solve(one, E.astype(one.dtype), b).x, inverse @ b, rtol=0, atol=1e-6)
    for one in (D[:5], D[0], D[:, :1], D.reshape(-1)):
        assert getattr(one, "padding", 0) == 0
    assert client.factor_solve(np.array(D), E, np.ones(order + 1)).x.shape == (order + 1,)
    # What has lost its padding is another system.
    with client.factor(D, E) as held, pytest.raises(blockd.InvalidArgument, match="padding"):
        held.refactor(np.array(D), E)


@pytest.mark.parametrize("lower", [True, False])
def test_either_triangle_may_be_read(client: blockd.Client, lower: bool) -> None:
    one = D.copy()
    one[:] = np.tril(D) if lower else np.triu(D)
    np.testing.assert_allclose(client.factor_solve(one, E, b, lower=lower).x, inverse @ b, rtol=0, atol=1e-14)


def test_rows_that_are_no_padding_any_more_are_refused(client: blockd.Client) -> None:
    wrong = []
    for at, value in (((-1, 1, 0), 1.0), ((-1, 1, 1), 0.0), ((-1, 1, 1), -1.0), ((-1, 1, 1), np.nan)):
        one = D.copy()
        one[at] = value
        wrong.append((one, E))
    coupled = E.copy()
    coupled[-1, 1, 0] = 1
    for one in (*wrong, (D[::-1], E), (D, coupled)):
        with pytest.raises(blockd.InvalidArgument, match="np.array") as caught:
            client.factor(*one)
        assert caught.value.field == "D"


def test_no_diagonal_makes_a_wrong_padding(client: blockd.Client) -> None:
    for value in (0.0, -1.0):
        A = band(order, 2)
        A.setdiag(value)
        D, E = blockd.from_scipy_sparse(A)
        assert D.padding == 1 and D[-1, 1, 1] == 1
        with pytest.raises(blockd.NotPositiveDefinite) as caught:
            client.factor(D, E)
        assert caught.value.block < 6
