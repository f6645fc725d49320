"""The calls of a client, against dense linear algebra."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pytest

import blockd
from support.problems import dense, solution, system

N, n = 6, 4


def test_log_determinant_and_what_the_handle_says(client: blockd.Client) -> None:
    D, E = system(N, n)
    with client.factor(D, E, logdet=True, condition_estimate=True, keep_matrix=True) as A:
        A_dense = dense(D, E)
        assert A.logdet == pytest.approx(np.linalg.slogdet(A_dense)[1], rel=1e-12)
        assert 1 <= A.condition_estimate <= 1.001 * np.linalg.cond(A_dense, 1)
        assert A.growth >= 1 and A.backward_error_bound < 1e-13 and A.matrix_kept
        assert (A.num_systems, A.num_blocks, A.block_size) == (None, N, n)
        assert A.shape == (N * n, N * n) and len(A.ids) == 1 and not A.found
        assert A.cost is not None and A.cost.batch_items == 1


def test_what_was_not_asked_for_is_not_made_up(client: blockd.Client) -> None:
    with client.factor(*system(N, n)) as A:
        for name in ("logdet", "condition_estimate"):
            with pytest.raises(ValueError, match=name):
                getattr(A, name)
        with pytest.raises(blockd.FailedPrecondition):
            A.solve(np.ones(N * n), residual=True)


def test_a_solution_says_how_right_it_is(client: blockd.Client) -> None:
    D, E = system(N, n)
    b = np.ones((N * n, 3))
    with client.factor(D, E, keep_matrix=True) as A:
        found = A.solve_with_info(b, residual=True, max_refinements=2)
        np.testing.assert_allclose(found.x, solution(D, E, b), rtol=0, atol=1e-13)
        assert found.backward_error is not None
        assert found.backward_error <= found.backward_error_bound < 1e-13
        assert found.cost.batch_items >= 1


def test_refactor_gives_new_values(client: blockd.Client, chunky: blockd.Client) -> None:
    D, E = system(N, n)
    b = np.ones(N * n)
    for one in (client, chunky):
        with one.factor(D, E) as A:
            names = A.ids
            A.refactor(2 * D, 2 * E, logdet=True)
            assert A.ids == names
            np.testing.assert_allclose(A.solve(b), solution(D, E, b) / 2, rtol=0, atol=1e-13)
            assert A.logdet == pytest.approx(np.linalg.slogdet(2 * dense(D, E))[1], rel=1e-12)
            with pytest.raises(blockd.NotPositiveDefinite):
                A.refactor(-D, E)
            np.testing.assert_allclose(A.solve(b), solution(D, E, b) / 2, rtol=0, atol=1e-13)
            with pytest.raises(blockd.InvalidArgument, match="those of the handle"):
                A.refactor(D[:-1], E[:-1])
            with pytest.raises(blockd.InvalidArgument, match="float32"):
                A.refactor(D.astype("f4"), E.astype("f4"))


def test_an_overwriting_refactor_that_fails_loses_the_handle(client: blockd.Client) -> None:
    D, E = system(N, n)
    A = client.factor(D, E)
    with pytest.raises(blockd.NotPositiveDefinite):
        A.refactor(-D, E, overwrite=True)
    with pytest.raises(blockd.HandleNotFound) as caught:
        A.solve(np.ones(N * n))
    assert caught.value.reason == "FAILED_REFACTOR"
    assert A.release() == 0


@pytest.mark.parametrize("K", [1, 3])
def test_a_batch_is_solved_system_by_system(client: blockd.Client, chunky: blockd.Client,
                                            K: int) -> None:
    D, E = system(N, n, batch=(K,))
    for one in (client, chunky):
        with one.factor(D, E, logdet=True) as A:
            assert A.num_systems == K and A.logdet.shape == (K,)
            for shape in ((K, N * n), (K, N * n, 2), (K, N, n), (K, N, n, 5)):
                b = np.random.default_rng(1).standard_normal(shape)
                x = A.solve(b)
                for k in range(K):
                    np.testing.assert_allclose(x[k], solution(D[k], E[k], b[k]), rtol=0, atol=1e-12)
                info = A.solve_with_info(b)
                np.testing.assert_array_equal(info.x, x)
                assert 0 < info.backward_error_bound < 1e-13
            for wrong in ((N * n,), (K + 1, N, n), (N, n)):
                with pytest.raises(blockd.InvalidArgument):
                    A.solve(np.ones(wrong))
            A.refactor(2 * D, 2 * E)
            np.testing.assert_allclose(A.solve(b), x / 2, rtol=0, atol=1e-12)
            assert A.info(K - 1).times_refactored == 1


def test_a_batch_that_fails_says_which_systems(client: blockd.Client) -> None:
    D, E = system(N, n, batch=(4,))
    D[1, 2] = -np.eye(n)
    D[3, 5, 1, 1] = -1
    held = len(client.list())
    with pytest.raises(blockd.NotPositiveDefinite) as caught:
        client.factor(D, E)
    assert (caught.value.system, caught.value.block) == (1, 2)
    assert sorted(caught.value.failures) == [1, 3]
    assert len(client.list()) == held
    copy = pickle.loads(pickle.dumps(caught.value))
    assert sorted(copy.failures) == [1, 3] and copy.failures[1] is copy
    with client.factor(D, E, logdet=True, partial=True) as A:
        assert sorted(A.failures) == [1, 3]
        assert isinstance(A.failures[3], blockd.NotPositiveDefinite)
        b = np.ones((4, N * n))
        x = A.solve(b)
        for k in (0, 2):
            np.testing.assert_allclose(x[k], solution(D[k], E[k], b[k]), rtol=0, atol=1e-12)
        assert np.isnan(x[[1, 3]]).all() and np.isnan(A.logdet[[1, 3]]).all()
        assert np.isfinite(A.logdet[[0, 2]]).all()


def test_factor_solve_keeps_nothing(client: blockd.Client, chunky: blockd.Client) -> None:
    D, E = system(N, n)
    b = np.random.default_rng(5).standard_normal((N, n, 2))
    held = len(client.list())
    for one in (client, chunky):
        found = one.factor_solve(D, E, b, logdet=True, residual=True)
        np.testing.assert_allclose(found.x, solution(D, E, b), rtol=0, atol=1e-12)
        assert found.logdet == pytest.approx(np.linalg.slogdet(dense(D, E))[1], rel=1e-12)
        assert found.backward_error is not None and found.backward_error < 1e-14
        np.testing.assert_allclose(one.factor_solve(D, E, b, lower=False).x, found.x, rtol=0,
                                   atol=1e-12)
    assert len(client.list()) == held


def test_large_ones_travel_as_streams(client: blockd.Client) -> None:
    """By themselves: 5 MB of matrix and 3 MB of right-hand sides."""
    N, n = 100, 56
    D, E = system(N, n)
    b = np.random.default_rng(6).standard_normal((N * n, 64))
    with client.factor(D, E) as A:
        x = A.solve(b)
        r = np.einsum("kij,kjd->kid", D, x.reshape(N, n, -1))
        r[1:] += np.einsum("kij,kjd->kid", E, x.reshape(N, n, -1)[:-1])
        r[:-1] += np.einsum("kji,kjd->kid", E, x.reshape(N, n, -1)[1:])
        np.testing.assert_allclose(r.reshape(b.shape), b, rtol=0, atol=1e-11)


def test_handles_are_given_back(client: blockd.Client) -> None:
    D, E = system(N, n)
    with client.factor(D, E) as A:
        names = A.ids
        assert names[0] in [one.handle for one in client.list()]
    assert A.released and names[0] not in [one.handle for one in client.list()]
    with pytest.raises(blockd.HandleNotFound) as caught:
        A.solve(np.ones(N * n))
    assert caught.value.reason == "RELEASED"
    assert A.release() == 0


def test_forgotten_handles_are_given_back(server: blockd.LocalServer) -> None:
    with server.connect(caller="forgetful") as client, server.connect(caller="forgetful") as other:
        client.factor(*system(N, n))
        gc.collect()
        client.close()
        assert other.list() == []


def test_a_handle_may_be_adopted(client: blockd.Client) -> None:
    D, E = system(N, n)
    b = np.ones((N, n))
    A = client.factor(D.astype("f4"), E.astype("f4"))
    with client.adopt(A.ids[0]) as twin:
        np.testing.assert_array_equal(twin.solve(b), A.solve(b))
        assert twin.dtype == np.float32
        with pytest.raises(ValueError, match="adopted"):
            twin.growth
    with pytest.raises(blockd.HandleNotFound):
        A.info()


def test_info_list_and_plan(client: blockd.Client) -> None:
    info = client.info()
    assert info.version and info.backend and info.limits["max_message_bytes"]
    plan = client.plan(64, 8, dtype="f4", num_systems=2, num_rhs=3)
    assert plan.factor_bytes > 0 and plan.levels[0].chain_blocks == 64
    assert plan.predicted_factor_seconds > 0
    with pytest.raises(blockd.InvalidArgument):
        client.plan(64, 8, dtype=int)
    with pytest.raises(blockd.InvalidArgument) as caught:
        client.plan(0, 8)
    assert caught.value.field == "spec.num_blocks"
    with client.factor(*system(N, n), pin=True, lease=100.0) as A:
        found = A.info()
        assert found.pinned and found.lease_seconds > 0 and found.dtype == np.float64
    client.check_health()


def test_an_idempotency_key_finds_what_is_held(client: blockd.Client, chunky: blockd.Client) -> None:
    D, E = system(N, n)
    with client.factor(D, E, idempotency_key=b"mine") as A:
        again = chunky.factor(D, E, idempotency_key=b"mine")
        assert again.found and again.ids == A.ids


@pytest.mark.parametrize("options", [
    {"accuracy": "perfect"}, {"priority": "first"}, {"lease": -1.0}, {"lease": float("nan")},
    {"timeout": 0.0}, {"timeout": float("nan")}, {"timeout": -1.0}])
def test_wrong_options_are_refused(client: blockd.Client, options: Any) -> None:
    with pytest.raises(blockd.InvalidArgument) as caught:
        client.factor(*system(N, n), **options)
    assert caught.value.field == next(iter(options))


def test_solutions_are_the_callers_own(client: blockd.Client) -> None:
    with client.factor(*system(N, n)) as A:
        b = np.ones(N * n)
        first = A.solve(b)
        kept = first.copy()
        first += 1
        np.testing.assert_array_equal(b, np.ones(N * n))
        np.testing.assert_array_equal(A.solve(b), kept)
