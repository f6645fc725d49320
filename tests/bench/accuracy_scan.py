"""Ill-conditioned systems of many families: is any answer's error above what was promised for it?

    accuracy_scan.py [--target=HOST:PORT] [--systems=10000] [--seed=1]

Needs a server, the blockd package, NumPy, SciPy and gmpy2. Backward errors are of residuals in exact rational
arithmetic. A system counts as refused if LAPACK's dpotrf factors it and the server does not, and as failed if a Solve
with ACCURACY_GUARANTEED fails. An answer is broken if its backward error is above 4 n eps (guaranteed), or above the
bound that came with it (standard). Exit code 1 if an answer is broken, or more than one system in a thousand is refused
or failed.
"""

import argparse
import collections
import sys
import time
from typing import Any

import blockd
import gmpy2
import numpy as np
import scipy.linalg

EPS = 2.0**-52


def squared_exponential(t, length, random):
    return np.exp(-0.5 * ((t[:, None] - t) / length) ** 2)


def matern(t, length, random):
    r = np.sqrt(5) * np.abs(t[:, None] - t) / length
    return (1 + r + r * r / 3) * np.exp(-r)


def rational_quadratic(t, length, random):
    return 1 / (1 + ((t[:, None] - t) / length) ** 2)


def vandermonde(t, length, random):
    v = np.vander(t)
    return v @ v.T


def hilbert(t, length, random):
    return scipy.linalg.hilbert(min(len(t), 12))


def cauchy(t, length, random):
    x = np.sort(t) + 0.01
    return 1 / (x[:, None] + x)


def graded(t, length, random):
    a = random.standard_normal((len(t), len(t)))
    d = 10.0 ** (-8 * random.random(len(t)))
    return (a @ a.T / len(t) + 1e-3 * np.eye(len(t))) * d[:, None] * d


FAMILIES = [squared_exponential, matern, rational_quadratic, vandermonde, hilbert, cauchy, graded]
SIZES = [2, 3, 5, 8, 9, 13, 16, 17, 24, 33, 40, 65]


def draw(index: int, random: Any) -> tuple[str, Any, Any]:
    """The name of the family, the diagonal blocks and the coupling blocks, of which a third of the systems has two."""
    family = FAMILIES[index % len(FAMILIES)]
    n = int(random.choice(SIZES, p=[0.09] * 10 + [0.05] * 2))
    t = np.arange(n) / n if index % 2 else np.sort(random.random(n))
    block = family(t, 10.0 ** random.uniform(-1.5, 1), random)
    if family is not hilbert:
        block = block + 10.0 ** random.uniform(-15, -8) * np.eye(len(block))
    block = (block + block.T) / 2
    blocks = 3 if n <= 17 and index % 3 == 0 else 1
    return family.__name__, np.repeat(block[None], blocks, 0), np.repeat(-0.3 * block[None], blocks - 1, 0)


def dense(diagonal: Any, coupling: Any) -> Any:
    count, n, _ = diagonal.shape
    whole = np.zeros((count, n, count, n))
    for i in range(count):
        whole[i, :, i] = diagonal[i]
    for i in range(count - 1):
        whole[i + 1, :, i] = coupling[i]
        whole[i, :, i + 1] = coupling[i].T
    return whole.reshape(count * n, count * n)


rational = np.vectorize(gmpy2.mpq, otypes=[object])


def backward_error(exact: Any, norm: float, b: Any, x: Any) -> float:
    """max |b - A x| / (|A|_inf max |x| + max |b|), its numerator exact."""
    residual = rational(b) - exact @ rational(x)
    return float(max(abs(residual))) / (norm * np.abs(x).max() + np.abs(b).max())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="127.0.0.1:50051")
    parser.add_argument("--systems", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    random = np.random.default_rng(flags.seed)
    counts: collections.Counter[str] = collections.Counter()
    worst: dict[str, float] = collections.defaultdict(float)
    begin = time.monotonic()
    with blockd.connect(flags.target) as client:
        for index in range(flags.systems):
            name, diagonal, coupling = draw(index, random)
            whole = dense(diagonal, coupling)
            exact, norm = rational(whole), np.abs(whole).sum(1).max()
            x = np.ones(len(whole)) if index % 2 else np.sin(np.arange(len(whole)) / 3) + 1.5
            b = whole @ x
            plain = 4 * diagonal.shape[1] * EPS
            counts["systems"] += 1
            try:
                lapack = scipy.linalg.cho_solve(scipy.linalg.cho_factor(whole, lower=True), b)
                counts["factored by LAPACK"] += 1
                worst["LAPACK"] = max(worst["LAPACK"], backward_error(exact, norm, b, lapack) / plain)
            except scipy.linalg.LinAlgError:
                lapack = None
            for accuracy in ("guaranteed", "standard"):
                said = f"{name}, n = {diagonal.shape[1]}, N = {len(diagonal)}, {accuracy}"
                try:
                    with client.factor(diagonal, coupling, accuracy=accuracy) as factorization:
                        answer = factorization.solve_with_info(b)
                except blockd.NotPositiveDefinite:
                    if lapack is not None:
                        counts[f"refused, {accuracy}"] += 1
                        print("refused:", said)
                    continue
                except blockd.BlockdError as error:
                    counts[f"failed, {accuracy}"] += 1
                    print("failed:", said, error)
                    continue
                error = backward_error(exact, norm, b, answer.x)
                promise = plain if accuracy == "guaranteed" else answer.backward_error_bound
                worst[accuracy] = max(worst[accuracy], error / plain)
                if error > promise:
                    counts[f"broken, {accuracy}"] += 1
                    print("BROKEN:", said, f"{error / plain:.3g} of 4 n eps, growth {factorization.growth:.3g}")
        device = client.info().device_name
    print(f"{device}; {time.monotonic() - begin:.0f} s; seed {flags.seed}")
    print("; ".join(f"{what}: {count}" for what, count in counts.items()))
    print("worst backward error in units of 4 n eps:", ", ".join(f"{what} {value:.3g}" for what, value in worst.items()))
    missed = sum(count for what, count in counts.items() if what.startswith(("refused", "failed")))
    return int(any(what.startswith("broken") for what in counts) or missed > flags.systems / 1000)


if __name__ == "__main__":
    sys.exit(main())
