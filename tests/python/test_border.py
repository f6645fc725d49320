"""A chain with a border of dense rows, against dense linear algebra of the whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import blockd
from support.problems import arrowhead, bordered, system
from support.restartable import Restartable
from test_arrays import LAYOUTS

N, n, p = 5, 3, 4
rows = N * n + p
D, E, B, C = bordered(N, n, p)
whole = arrowhead(D, E, B, C)
b = np.random.default_rng(9).standard_normal((rows, 2))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_is_read_by_its_indices(client: blockd.Client, chunky: blockd.Client, layout: str, blocks: bool) -> None:
    border = LAYOUTS[layout](B.reshape(p, N, n) if blocks else B)
    for one in (client, chunky):
        with one.factor(D, E, border=border, corner=LAYOUTS[layout](C), check_symmetric=True, logdet=True) as A:
            np.testing.assert_allclose(whole @ A.solve(LAYOUTS[layout](b)), b, rtol=0, atol=1e-13)
            assert A.logdet == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-13)


@pytest.mark.parametrize("lower", [True, False])
def test_one_triangle_of_the_corner_is_read(client: blockd.Client, chunky: blockd.Client, lower: bool) -> None:
    half = np.tril if lower else np.triu
    for one in (client, chunky):
        with one.factor(half(D), E, border=B, corner=half(C), lower=lower) as A:
            np.testing.assert_allclose(whole @ A.solve(b), b, rtol=0, atol=1e-13)
    wrong = C.copy()
    wrong[0, 1] += 1e-9
    with pytest.raises(ValueError, match=r"corner is .* at \(0, 1\) and .* at \(1, 0\)"):
        client.factor(D, E, border=B, corner=wrong, check_symmetric=True)
    with pytest.raises(ValueError, match=r"corner\[1\] is .* at \(0, 1\)"):
        client.factor(*(np.stack([one, one]) for one in (D, E)), border=np.stack([B, B]),
                      corner=np.stack([C, wrong]), check_symmetric=True)


@pytest.mark.parametrize("N, n, p", [(1, 1, 1), (1, 4, 2), (4, 1, 1), (2, 2, 7), (6, 3, 1)])
def test_small_shapes(client: blockd.Client, N: int, n: int, p: int) -> None:
    D, E, B, C = bordered(N, n, p)
    with client.factor(D, None if N == 1 else E, border=B, corner=C) as A:
        b = np.ones(N * n + p)
        np.testing.assert_allclose(arrowhead(D, E, B, C) @ A.solve(b), b, rtol=0, atol=1e-13)


def test_float32_where_all_four_are(client: blockd.Client) -> None:
    single = [one.astype("f4") for one in (D, E, B, C)]
    with client.factor(single[0], single[1], border=single[2], corner=single[3]) as A:
        x = A.solve(b)
        assert x.dtype == np.float32
        np.testing.assert_allclose(whole @ x, b, rtol=0, atol=1e-5)
    with client.factor(single[0], single[1], border=B, corner=single[3]) as A:
        assert A.dtype == np.float64


def test_large_ones_travel_as_streams(client: blockd.Client) -> None:
    """By themselves: 4 MB of border, 4 MB of right-hand sides, 2 MB of columns of the inverse."""
    N, n, p = 64, 16, 512
    D, E, B, C = bordered(N, n, p)
    whole = arrowhead(D, E, B, C)
    b = np.random.default_rng(6).standard_normal((N * n + p, 350))
    for border, corner in ((B, C), (np.asfortranarray(B), C[::-1, ::-1].copy()[::-1, ::-1])):
        with client.factor(D, E, border=border, corner=corner) as A:
            np.testing.assert_allclose(whole @ A.solve(b), b, rtol=0, atol=1e-10)
            found = A.selected_inverse("diagonal", border=True)
            Z = np.linalg.inv(whole)
            np.testing.assert_allclose(found.border.reshape(N * n, p), Z[:N * n, N * n:], rtol=0, atol=1e-12)


def test_what_the_handle_says(client: blockd.Client) -> None:
    with client.factor(D, E, border=B, corner=C) as A:
        assert A.arrow_size == A.info().arrow_size == p and A.shape == (rows, rows)
        assert f"n={n}, p={p}, float64" in repr(A)
        twin = client.adopt(A.ids[0])
        assert twin.arrow_size == p
        np.testing.assert_array_equal(twin.solve(b), A.solve(b))
        np.testing.assert_allclose(A.linear_operator() @ (whole @ b), b, rtol=0, atol=1e-13)
    with client.factor(D, E) as A:
        assert A.arrow_size == A.info().arrow_size == 0 and "p=" not in repr(A)
    assert client.plan(N, n, arrow_size=p).factor_bytes > client.plan(N, n).factor_bytes
    with pytest.raises(blockd.InvalidArgument) as caught:
        client.plan(N, n, arrow_size=1025)
    assert caught.value.field == "spec.arrow_size"


def test_refactor_gives_new_values(client: blockd.Client, chunky: blockd.Client) -> None:
    for one in (client, chunky):
        with one.factor(D, E, border=B, corner=C) as A:
            A.refactor(2 * D, 2 * E, border=2 * B.reshape(p, N, n), corner=2 * C, logdet=True)
            assert A.logdet == pytest.approx(np.linalg.slogdet(2 * whole)[1], rel=1e-13)
            np.testing.assert_allclose(2 * whole @ A.solve(b), b, rtol=0, atol=1e-13)
            with pytest.raises(blockd.NotPositiveDefinite):
                A.refactor(D, E, border=B, corner=-C)
            np.testing.assert_allclose(2 * whole @ A.solve(b), b, rtol=0, atol=1e-13)
            for border, corner in ((None, None), (B[1:], C[1:, 1:])):
                with pytest.raises(blockd.InvalidArgument, match="those of the handle") as caught:
                    A.refactor(D, E, border=border, corner=corner)
                assert caught.value.field == "border"


def test_factor_solve_keeps_nothing(client: blockd.Client, chunky: blockd.Client) -> None:
    held = len(client.list())
    for one in (client, chunky):
        found = one.factor_solve(D, E, b, border=B, corner=C, logdet=True)
        np.testing.assert_allclose(whole @ found.x, b, rtol=0, atol=1e-13)
        assert found.logdet == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-13)
    assert len(client.list()) == held


@pytest.mark.parametrize("options", [{"keep_matrix": True}, {"accuracy": "guaranteed"}, {"condition_estimate": True}])
def test_what_a_border_does_not_have_is_refused(client: blockd.Client, chunky: blockd.Client, options: Any) -> None:
    for one in (client, chunky):
        with pytest.raises(blockd.InvalidArgument):
            one.factor(D, E, border=B, corner=C, **options)


@pytest.mark.parametrize("options", [{"residual": True}, {"max_refinements": 1}])
def test_what_a_solve_does_not_have_is_refused(client: blockd.Client, chunky: blockd.Client, options: Any) -> None:
    for one in (client, chunky):
        with one.factor(D, E, border=B, corner=C) as A, pytest.raises(blockd.InvalidArgument):
            A.solve(b, **options)
        with pytest.raises(blockd.InvalidArgument):
            one.factor_solve(D, E, b, border=B, corner=C, **options)


@pytest.mark.parametrize("field, border, corner", [
    ("corner", (p, N * n), None), ("border", None, (p, p)), ("border", (0, N * n), (0, 0)),
    ("border", (p, N * n + 1), (p, p)), ("border", (N * n, p), (p, p)), ("border", (N * n,), (1, 1)),
    ("border", (p, n, N), (p, p)), ("border", (1, p, N * n), (p, p)), ("border", (), (p, p)),
    ("border", (1025, N * n), (1025, 1025)), ("corner", (p, N * n), (p + 1, p + 1)),
    ("corner", (p, N * n), (1, p, p)), ("corner", (1, N * n), ())])
def test_shapes_that_do_not_agree_are_refused(client: blockd.Client, field: str, border: Any, corner: Any) -> None:
    with pytest.raises(blockd.InvalidArgument) as caught:
        client.factor(D, E, border=None if border is None else np.ones(border),
                      corner=None if corner is None else np.ones(corner))
    assert caught.value.field == field and caught.value.came and caught.value.expected


@pytest.mark.parametrize("name", ["border", "corner"])
def test_what_has_no_real_numbers_is_refused(client: blockd.Client, name: str) -> None:
    given: "dict[str, Any]" = {"border": B, "corner": C}
    for wrong in (given[name].astype(complex), scipy.sparse.csr_matrix(given[name])):
        with pytest.raises(TypeError, match=name):
            client.factor(D, E, **{**given, name: wrong})


@pytest.mark.parametrize("shape", [(rows - p,), (N, n), (N, n, 2), (1, rows), (rows, 1, 1), (rows + 1,), ()])
def test_right_hand_sides_of_another_shape_are_refused(client: blockd.Client, shape: Any) -> None:
    with client.factor(D, E, border=B, corner=C) as A, client.session() as session:
        with pytest.raises(blockd.InvalidArgument, match=rf"\({rows}\) or \({rows}, d\)") as caught:
            A.solve(np.ones(shape))
        assert caught.value.field == "b"
        with pytest.raises(blockd.InvalidArgument, match="b is of shape"):
            session.send(A, np.ones(shape))


def test_not_positive_definite_says_where(client: blockd.Client, chunky: blockd.Client) -> None:
    wrong = C.copy()
    wrong[2, 2] = -100
    for one in (client, chunky):
        with pytest.raises(blockd.NotPositiveDefinite) as caught:
            one.factor(D, E, border=B, corner=wrong)
        assert (caught.value.system, caught.value.block, caught.value.row) == (0, N, 2)
        assert caught.value.minor == N * n + 3
        with pytest.raises(blockd.NotPositiveDefinite) as caught:
            one.factor_solve(D, E, b, border=B, corner=wrong)
        assert (caught.value.block, caught.value.row) == (N, 2)
        with pytest.raises(blockd.NotPositiveDefinite) as caught:
            one.factor(-D, E, border=B, corner=C)
        assert caught.value.block == 0


@pytest.mark.parametrize("name", ["border", "corner"])
def test_what_is_not_finite_is_refused_with_its_place(client: blockd.Client, chunky: blockd.Client, name: str) -> None:
    given = {"border": B.copy(), "corner": C.copy()}
    given[name][2, 1] = np.nan
    for one in (client, chunky):
        with pytest.raises(blockd.InvalidArgument) as caught:
            one.factor(D, E, **given)
        assert caught.value.field == f"system[0].{name}"


@pytest.mark.parametrize("dtype, error", [("f8", 1e-13), ("f4", 1e-5)])
@pytest.mark.parametrize("first, count", [(0, None), (0, 1), (1, 3), (4, None)])
def test_the_inverse_has_columns_of_the_border(client: blockd.Client, dtype: str, error: float, first: int,
                                               count: Any) -> None:
    end = N if count is None else first + count
    Z = np.linalg.inv(whole)
    with client.factor(D.astype(dtype), E.astype(dtype), border=B.astype(dtype), corner=C.astype(dtype)) as A:
        for parts in ("blocks", "diagonal", "tridiagonal"):
            found = A.selected_inverse(parts, first=first, count=count, border=True)
            assert isinstance(found, blockd.Arrowhead) and found.border.dtype == found.corner.dtype == dtype
            assert found.border.shape == (end - first, n, p)
            np.testing.assert_allclose(found.border.reshape(-1, p), Z[first * n:end * n, N * n:], rtol=0, atol=error)
            np.testing.assert_allclose(found.corner, Z[N * n:, N * n:], rtol=0, atol=error)
            expected = np.stack([Z[i * n:(i + 1) * n, i * n:(i + 1) * n] for i in range(first, end)])
            if parts == "tridiagonal":
                assert isinstance(found.blocks, blockd.Tridiagonal)
                for i in range(first, end - 1):
                    np.testing.assert_allclose(found.blocks.lower[i - first],
                                               Z[(i + 1) * n:(i + 2) * n, i * n:(i + 1) * n], rtol=0, atol=error)
            elif parts == "diagonal":
                expected = np.diagonal(expected, axis1=1, axis2=2)
            diagonal = found.blocks.diagonal if parts == "tridiagonal" else found.blocks
            np.testing.assert_allclose(diagonal, expected, rtol=0, atol=error)


@pytest.mark.parametrize("parts", ["blocks", "diagonal", "tridiagonal"])
def test_the_inverse_may_be_had_without_the_border(client: blockd.Client, parts: str) -> None:
    with client.factor(D, E, border=B, corner=C) as A:
        found, alone = A.selected_inverse(parts, border=True).blocks, A.selected_inverse(parts)
        assert type(found) is type(alone)
        for one, other in zip(found, alone):
            np.testing.assert_array_equal(one, other)


def test_there_are_no_columns_of_a_border_that_is_not_there(client: blockd.Client) -> None:
    with client.factor(D, E) as A, pytest.raises(blockd.InvalidArgument) as caught:
        A.selected_inverse(border=True)
    assert caught.value.field == "border"


def test_samples_have_the_covariance(client: blockd.Client) -> None:
    with client.factor(D, E, border=B, corner=C) as A:
        x = A.sample(2000, seed=7)
        assert x.shape == (2000, rows) and A.sample().shape == (1, rows)
        whitened = np.linalg.cholesky(whole).T @ x.T
        assert abs(np.cov(whitened) - np.eye(rows)).max() < 0.2
        np.testing.assert_array_equal(A.sample(3, seed=7, first_sample=5), x[5:8])


def test_batches(client: blockd.Client, chunky: blockd.Client) -> None:
    D, E, B, C = bordered(N, n, p, batch=(3,))
    b = np.random.default_rng(1).standard_normal((3, rows, 2))
    C[1, 0, 0] = -100
    for one in (client, chunky):
        with pytest.raises(blockd.NotPositiveDefinite) as caught:
            one.factor(D, E, border=B, corner=C)
        assert (caught.value.system, caught.value.block, caught.value.row) == (1, N, 0)
        with one.factor(D, E, border=B.reshape(3, p, N, n), corner=C, partial=True, logdet=True) as A:
            x, found, drawn = A.solve(b), A.selected_inverse(border=True), A.sample(2)
            assert found.border.shape == (3, N, n, p) and drawn.shape == (3, 2, rows)
            for k in (0, 2):
                whole = arrowhead(D[k], E[k], B[k], C[k])
                Z = np.linalg.inv(whole)
                np.testing.assert_allclose(whole @ x[k], b[k], rtol=0, atol=1e-13)
                np.testing.assert_allclose(found.border[k].reshape(-1, p), Z[:-p, -p:], rtol=0, atol=1e-13)
                np.testing.assert_allclose(found.corner[k], Z[-p:, -p:], rtol=0, atol=1e-13)
                assert A.logdet[k] == pytest.approx(np.linalg.slogdet(whole)[1], rel=1e-13)
            for array in (x, found.blocks, found.border, found.corner, drawn):
                assert np.isnan(array[1]).all() and np.isfinite(array[[0, 2]]).all()
        good = C.copy()
        good[1] = good[0]
        with one.factor(D, E, border=B[:, ::-1], corner=good[:, ::-1, ::-1]) as A:
            A.refactor(D, E, border=B, corner=good)
            x = A.solve(b[:, :, 0])
            for k in range(3):
                np.testing.assert_allclose(arrowhead(D[k], E[k], B[k], good[k]) @ x[k], b[k, :, 0], rtol=0, atol=1e-12)
        for wrong in ({"border": B[0], "corner": C[0]}, {"border": B[:2], "corner": C[:2]}):
            with pytest.raises(blockd.InvalidArgument, match=r"\(3, p, 15\) or \(3, p, 5, 3\)"):
                one.factor(D, E, **wrong)


def test_sessions_mix_them_with_others(client: blockd.Client) -> None:
    plain = system(N, n)
    with client.factor(D, E, border=B, corner=C) as A, client.factor(*plain) as other:
        with client.session() as session:
            sent = [(session.send(A, k * b), session.send(other, np.full(N * n, float(k)))) for k in range(50)]
            for k, (ours, theirs) in enumerate(sent):
                np.testing.assert_allclose(whole @ ours.result(60), k * b, rtol=0, atol=1e-11)
                np.testing.assert_array_equal(theirs.result(60), other.solve(np.full(N * n, float(k))))


def test_handles_heal(tmp_path: Path) -> None:
    calls: "list[int]" = []

    def values() -> "tuple[Any, ...]":
        calls.append(1)
        return 2 * D, 2 * E, 2 * B, 2 * C

    with Restartable(tmp_path, "--device_memory=64MiB") as server, server.connect() as client:
        border = B.copy()
        kept = client.factor(D, E, border=border, corner=C, heal=True)
        border[...] = np.nan  # the handle has a copy
        asked = client.factor(D, E, border=B, corner=C, heal=values)
        fewer = client.factor(D, E, border=B, corner=C, heal=lambda: (D, E))
        wrong = client.factor(D, E, border=B, corner=C, heal=lambda: (D, E, B))
        server.restart()
        np.testing.assert_allclose(whole @ kept.solve(b), b, rtol=0, atol=1e-13)
        np.testing.assert_allclose(2 * whole @ asked.solve(b), b, rtol=0, atol=1e-13)
        assert calls == [1]
        for handle, why in ((fewer, "another shape"), (wrong, "3 arrays")):
            with pytest.raises(blockd.InvalidArgument, match=why):
                handle.solve(b)
        kept.refactor(4 * D, 4 * E, border=4 * B, corner=4 * C)
        server.restart()
        np.testing.assert_allclose(kept.selected_inverse(border=True).corner,
                                   np.linalg.inv(4 * whole)[N * n:, N * n:], rtol=0, atol=1e-13)


@pytest.mark.parametrize("large", [False, True])
def test_the_twins(server: blockd.LocalServer, large: bool) -> None:
    async def work() -> None:
        sizes: "dict[str, Any]" = {"stream_threshold_bytes": 64, "chunk_bytes": 100} if large else {}
        async with blockd.aio.connect(server.target, **sizes) as client, client.session() as session:
            async with await client.factor(D, E, border=B, corner=C) as A:
                np.testing.assert_allclose(whole @ await A.solve(b), b, rtol=0, atol=1e-13)
                np.testing.assert_allclose(whole @ await (await session.send(A, b)), b, rtol=0, atol=1e-13)
                await A.refactor(2 * D, 2 * E, border=2 * B, corner=2 * C)
                found = await A.selected_inverse("tridiagonal", border=True)
                np.testing.assert_allclose(found.corner, np.linalg.inv(2 * whole)[-p:, -p:], rtol=0, atol=1e-13)
                assert (await A.sample(3)).shape == (3, rows)
                assert (await (await client.adopt(A.ids[0])).info()).arrow_size == p
            solved = await client.factor_solve(D, E, b, border=B, corner=C)
            np.testing.assert_allclose(whole @ solved.x, b, rtol=0, atol=1e-13)
            assert (await client.plan(N, n, arrow_size=p)).factor_bytes > 0

    asyncio.run(work())


@pytest.mark.parametrize("form", ["csr", "coo", "lil"])
@pytest.mark.parametrize("block_size", [None, n])
def test_from_sparse(client: blockd.Client, form: str, block_size: Any) -> None:
    D, E, B, C = blockd.from_scipy_sparse(scipy.sparse.coo_matrix(whole).asformat(form), block_size, arrow_size=p)
    assert D.shape == (N, n, n) and B.shape == (p, N * n)
    np.testing.assert_array_equal(arrowhead(D, E, B, C), whole)
    with client.factor(D, E, border=B, corner=C) as A:
        np.testing.assert_allclose(whole @ A.solve(b), b, rtol=0, atol=1e-13)


def test_what_no_sparse_matrix_has_is_refused() -> None:
    A = scipy.sparse.csr_matrix(whole)
    for arrow_size in (-1, rows, rows + 1):
        with pytest.raises(blockd.InvalidArgument) as caught:
            blockd.from_scipy_sparse(A, arrow_size=arrow_size)
        assert caught.value.field == "arrow_size"
    with pytest.raises(ValueError, match="a divisor of 15, the order without the border"):
        blockd.from_scipy_sparse(A, 4, arrow_size=p)
    with pytest.raises(ValueError, match="not block tridiagonal"):
        blockd.from_scipy_sparse(A, n, arrow_size=1)
