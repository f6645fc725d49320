"""Arrays of any dtype, order and strides give the answer of a dense solve, or are refused."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import numpy as np
import pytest

import blockd
from support.problems import solution, system

N, n, d = 4, 3, 2


def strided(a: Any) -> Any:
    """Every second element of something larger, full of NaN or of other numbers."""
    room = np.full([2 * size + 1 for size in a.shape], 7, a.dtype)
    view = room[tuple(slice(1, 2 * size + 1, 2) for size in a.shape)]
    view[...] = a
    return view


def backwards(a: Any) -> Any:
    """Negative strides."""
    turn = tuple(slice(None, None, -1) for _ in a.shape)
    return np.ascontiguousarray(a[turn])[turn]


def blockwise_fortran(a: Any) -> Any:
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if a.ndim > 1 else a


def rotated(a: Any) -> Any:
    """The axes in memory in yet another order."""
    axes = np.roll(np.arange(a.ndim), 1)
    return np.ascontiguousarray(a.transpose(axes)).transpose(np.argsort(axes))


def read_only(a: Any) -> Any:
    a = a.copy()
    a.flags.writeable = False
    return a


class Dlpack:
    """What another library hands over: nothing but DLPack."""

    def __init__(self, a: Any) -> None:
        self._array = a

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": np.ascontiguousarray, "F": np.asfortranarray, "strided": strided,
    "backwards": backwards, "blockwise_fortran": blockwise_fortran, "rotated": rotated,
    "read_only": read_only, "big_endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "dlpack": lambda a: Dlpack(np.ascontiguousarray(a)), "list": lambda a: a.tolist(),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
}
DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1"]


def values(dtype: str) -> tuple[Any, Any, Any]:
    """D, E and b that every dtype has exactly."""
    rng = np.random.default_rng(1)
    low = 0 if dtype[0] == "u" else -2
    E = rng.integers(low, 3, (N - 1, n, n))
    half = rng.integers(low, 3, (N, n, n))
    D = half + half.swapaxes(1, 2) + 40 * np.eye(n, dtype=int)
    return D.astype(dtype), E.astype(dtype), rng.integers(low, 9, (N, n, d)).astype(dtype)


def close(dtype: Any) -> float:
    return 2e-5 if np.dtype(dtype) == np.float32 else 1e-13


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_read_by_its_indices(client: blockd.Client, chunky: blockd.Client, dtype: str,
                                layout: str) -> None:
    D, E, b = values(dtype)
    expected = solution(D, E, b)
    laid = [LAYOUTS[layout](a) for a in (D, E, b)]
    for one in (client, chunky):
        with one.factor(laid[0], laid[1], check_symmetric=True) as A:
            x = A.solve(laid[2])
            assert A.dtype == (np.float32 if dtype == "f4" and layout != "list" else np.float64)
            assert x.dtype == A.dtype and x.shape == b.shape and x.flags.writeable
            np.testing.assert_allclose(x, expected, rtol=0, atol=close(A.dtype))


def test_any_mixture_of_layouts_is_read_by_its_indices(client: blockd.Client) -> None:
    D, E, b = values("f8")
    D[:, 0, 1] = 99  # the other triangle is not looked at
    expected = solution(D, E, b)
    plain = [layout for name, layout in LAYOUTS.items() if name not in ("list", "big_endian")]
    for of_D, of_E in itertools.product(plain, plain):
        with client.factor(of_D(D), of_E(E)) as A:
            np.testing.assert_allclose(A.solve(b), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("layout", ["C", "F", "blockwise_fortran", "strided"])
@pytest.mark.parametrize("lower", [True, False])
def test_reads_the_triangle_that_is_named(client: blockd.Client, chunky: blockd.Client, lower: bool,
                                          layout: str) -> None:
    D, E = system(N, n)
    D = np.tril(D) if lower else np.triu(D)  # the other one is zero
    b = np.arange(N * n, dtype=float)
    for one in (client, chunky):
        with one.factor(LAYOUTS[layout](D), E, lower=lower) as A:
            np.testing.assert_allclose(A.solve(b), solution(D, E, b, lower), rtol=0, atol=1e-12)


def test_triangles_that_differ_are_found_where_asked(client: blockd.Client) -> None:
    D, E = system(N, n)
    D[2, 0, 1] += 1e-9
    with pytest.raises(ValueError, match=r"D\[2\] is .* at \(0, 1\) and .* at \(1, 0\)"):
        client.factor(D, E, check_symmetric=True)


@pytest.mark.parametrize("shape", [(N * n,), (N * n, 1), (N * n, d), (N, n), (N, n, 1), (N, n, d)])
@pytest.mark.parametrize("layout", ["C", "F", "strided", "backwards", "rotated"])
def test_every_shape_of_right_hand_sides(client: blockd.Client, chunky: blockd.Client,
                                         shape: tuple[int, ...], layout: str) -> None:
    D, E = system(N, n)
    b = np.random.default_rng(3).standard_normal(shape)
    for one in (client, chunky):
        with one.factor(D, E) as A:
            x = A.solve(LAYOUTS[layout](b))
            assert x.shape == shape
            np.testing.assert_allclose(x, solution(D, E, b), rtol=0, atol=1e-12)


@pytest.mark.parametrize("N, n", [(1, 1), (1, 4), (2, 1), (5, 1), (2, 2), (3, 3), (7, 2)])
def test_small_shapes_have_one_meaning(client: blockd.Client, N: int, n: int) -> None:
    """Where (N n, d) and (N, n) could both be meant, they are the same."""
    D, E = system(N, n)
    with client.factor(D, None if N == 1 else E) as A:
        for columns in (1, 2, n, N):
            for shape in ((N * n, columns), (N, n), (N, n, columns)):
                b = np.random.default_rng(4).standard_normal(shape)
                np.testing.assert_allclose(A.solve(b), solution(D, E, b), rtol=0, atol=1e-12)


def test_no_columns_have_no_solution(client: blockd.Client) -> None:
    with client.factor(*system(N, n)) as A:
        assert A.solve(np.empty((N * n, 0))).shape == (N * n, 0)


@pytest.mark.parametrize("wrong", [
    np.ones((N, n, n), complex), np.ones((N, n, n), object), np.full((N, n, n), "1"),
    np.ones((N, n, n), np.longdouble), getattr(np.ma, "masked_equal")(np.ones((N, n, n)), 1),
    np.zeros((N, n, n), "datetime64[s]"), np.full((N, n, n), 2**53 + 1),
    np.full((N, n, n), -2**63), None])
def test_what_has_no_real_numbers_is_refused(client: blockd.Client, wrong: Any) -> None:
    D, E = system(N, n)
    with pytest.raises(TypeError):
        client.factor(wrong, E)
    with pytest.raises((TypeError, ValueError)):
        client.factor(D, None if wrong is None else wrong[1:])
    with client.factor(D, E) as A, pytest.raises(TypeError):
        A.solve(None if wrong is None else wrong[:, :, 0])


@pytest.mark.parametrize("D, E", [
    ((N, n), (N - 1, n, n)), ((N, n, n + 1), (N - 1, n, n)), ((N, n, n), (N, n, n)),
    ((N, n, n), (N - 2, n, n)), ((N, n, n), (N - 1, n, n + 1)), ((N, n, n), (n, n)),
    ((0, n, n), (0, n, n)), ((N, 0, 0), (N - 1, 0, 0)), ((2, N, n, n), (N - 1, n, n)),
    ((2, N, n, n), (3, N - 1, n, n)), ((N, n, n), (1, N - 1, n, n)), ((0, N, n, n), (0, N - 1, n, n)),
    ((1, 1, N, n, n), (1, 1, N - 1, n, n)), ((), ())])
def test_shapes_that_do_not_agree_are_refused(client: blockd.Client, D: Any, E: Any) -> None:
    with pytest.raises(blockd.InvalidArgument) as caught:
        client.factor(np.ones(D), np.ones(E))
    wrong = caught.value
    assert wrong.field in ("D", "E") and wrong.came and wrong.expected
    assert str((D if wrong.field == "D" else E)) in wrong.came


@pytest.mark.parametrize("shape", [
    (), (N * n + 1,), (N * n - 1,), (n, N), (N, n, d, 1), (N * n, d, 1), (1, N * n), (d, N * n),
    (2, N, n), (0,), (N, n + 1)])
def test_right_hand_sides_of_another_shape_are_refused(client: blockd.Client, shape: Any) -> None:
    with client.factor(*system(N, n)) as A, pytest.raises(blockd.InvalidArgument) as caught:
        A.solve(np.ones(shape))
    assert caught.value.field == "b" and str(shape) in caught.value.came


@pytest.mark.filterwarnings("error")
def test_numbers_that_float32_does_not_have_are_refused(client: blockd.Client) -> None:
    D, E = (a.astype(np.float32) for a in system(N, n))
    b = np.ones((N, n, d))
    b[0, 0, 0] = np.inf  # is infinite itself
    b[2, 1, 1] = -1e39
    with client.factor(D, E) as A:
        with pytest.raises(blockd.InvalidArgument, match=r"-1e\+39 at \(2, 1, 1\).*float32") as caught:
            A.solve(b, check_finite=False)
        assert caught.value.field == "b"
        b[2, 1, 1] = np.finfo(np.float32).max / 2
        assert np.isfinite(A.solve(b, check_finite=False)[..., 1]).all()
    with pytest.raises(blockd.InvalidArgument, match=r"1e\+300 at \(0,\).*float32"):
        client.factor_solve(D, E, np.full(N * n, 1e300))


def test_couplings_may_not_be_forgotten(client: blockd.Client) -> None:
    with pytest.raises(blockd.InvalidArgument, match=r"E is missing"):
        client.factor(system(N, n)[0])


@pytest.mark.parametrize("seed", range(40))
def test_random_views(client: blockd.Client, chunky: blockd.Client, seed: int) -> None:
    """Whatever numpy makes of slices, transpositions and dtypes."""
    rng = np.random.default_rng(seed)
    N, n, d = (int(size) for size in rng.integers(1, 7, 3))
    batch = () if rng.random() < 0.5 else (int(rng.integers(1, 4)),)
    D, E = system(N, n, seed, batch)
    b = rng.standard_normal((*batch, N, n, d))

    def disguise(a: Any) -> Any:
        axes = rng.permutation(a.ndim)
        grow = [int(rng.integers(1, 3)) for _ in axes]
        room = np.empty([size * step for size, step in zip(a.transpose(axes).shape, grow)],
                        rng.choice(["<f8", ">f8"]))
        view = room[tuple(slice(None, None, step) for step in grow)].transpose(np.argsort(axes))
        flip = tuple(slice(None, None, int(rng.choice([1, -1]))) for _ in axes)
        view[flip] = a
        return view[flip]

    lower = bool(rng.random() < 0.5)
    one = client if rng.random() < 0.5 else chunky
    with one.factor(disguise(D), disguise(E), lower=lower) as A:
        x = A.solve(disguise(b))
    flat = [a if batch else a[np.newaxis] for a in (D, E, b, x)]
    for of_D, of_E, of_b, of_x in zip(*flat):
        np.testing.assert_allclose(of_x, solution(of_D, of_E, of_b, lower), rtol=0, atol=1e-11)
