#!/usr/bin/env python3
"""Smooth beside statsmodels on the same machine, in each form.

  pip install statsmodels numpy grpcio protobuf
  PYTHONPATH=client/python python3 tests/bench/statsmodels_bench.py --blockd=build/release/bin/blockd [--rounds=9]

Means, covariances and the log-likelihood from both. statsmodels smooths with its compiled Kalman smoother alone, once
as it is, which stops updating covariances that have settled (`tolerance`), and once without. Of blockd the call from
Python counts, and its compute on the server; the orthogonal forms compute a system on one thread. Rounds alternate;
medians count.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any, Callable

import numpy as np
import statsmodels
from statsmodels.datasets import co2, nile
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

import blockd

HARMONICS, WEEK, YEAR = 3, 7, 365.25
FORMS = ("information", "orthogonal", "double-double")
Model = "dict[str, Any]"  # the arguments of Client.smooth


def level() -> Model:
    return {"F": np.eye(1), "Q": np.array([[1469.1]]), "H": np.eye(1), "R": np.array([[15099.0]]),
            "y": nile.load_pandas().data.volume.to_numpy()[:, None], "m0": np.zeros(1), "P0": 1e6 * np.eye(1)}


def carbon_dioxide() -> Model:
    """A trend and three harmonics of the year, weekly."""
    n = 2 + 2 * HARMONICS
    F, H = np.zeros((n, n)), np.zeros((1, n))
    F[0, 0] = F[0, 1] = F[1, 1] = H[0, 0] = 1
    for k in range(HARMONICS):
        first, angle = 2 + 2 * k, 2 * math.pi * (k + 1) * WEEK / YEAR
        F[first, first] = F[first + 1, first + 1] = math.cos(angle)
        F[first, first + 1], F[first + 1, first] = math.sin(angle), -math.sin(angle)
        H[0, first] = 1
    Q = np.diag([0.0128, 4e-8] + [1.08e-5] * (n - 2))
    return {"F": F, "Q": Q, "H": H, "R": np.array([[0.0909]]), "y": co2.load_pandas().data.co2.to_numpy()[:, None],
            "m0": np.zeros(n), "P0": 1e6 * np.eye(n)}


def drawn(steps: int, n: int, ny: int, series: int = 1, missing: float = 0.0) -> Model:
    rng = np.random.default_rng(n)
    y = rng.normal(size=(series, steps, ny))
    y[rng.random(y.shape) < missing] = np.nan
    return {"F": rng.uniform(-0.5, 0.5, (n, n)) / (2 * math.sqrt(n)) + 0.7 * np.eye(n), "Q": np.eye(n),
            "H": rng.uniform(-0.5, 0.5, (ny, n)), "R": np.eye(ny), "y": y if series > 1 else y[0], "m0": np.zeros(n),
            "P0": np.eye(n)}


WORK: "dict[str, Callable[[], Model]]" = {
    "Nile: T = 100, n = 1": level, "T = 100, n = 2": lambda: drawn(100, 2, 1), "T = 200, n = 4": lambda: drawn(200, 4, 1),
    "carbon dioxide: T = 2284, n = 8": carbon_dioxide, "T = 1000, n = 20, ny = 10": lambda: drawn(1000, 20, 10),
    "K = 1000 series, T = 200, n = 4, 5% missing": lambda: drawn(200, 4, 1, 1000, 0.05)}


def theirs(model: Model, y: Any, tolerance: "float | None" = None) -> KalmanSmoother:
    n, ny = len(model["F"]), len(model["H"])
    smoother = KalmanSmoother(k_endog=ny, k_states=n, k_posdef=n)
    smoother.bind(y.copy())
    smoother["selection"] = np.eye(n)
    for name, ours in (("transition", "F"), ("design", "H"), ("state_cov", "Q"), ("obs_cov", "R")):
        smoother[name] = model[ours]
    smoother.initialize_known(model["m0"], model["P0"])
    if tolerance is not None:
        smoother.tolerance = tolerance
    return smoother


def seconds(call: "Callable[[], Any]") -> "tuple[float, Any]":
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def is_smoothed(client: blockd.Client, model: Model, form: str) -> bool:
    """False if its numbers in that form would not be good enough."""
    try:
        client.smooth(**model, form=form)
    except blockd.NotSmoothable:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blockd", required=True, help="the server's program")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"statsmodels {statsmodels.__version__}\n\n| work | form | the call, ms | compute, ms | statsmodels, ms | "
          "without its steady state, ms | statsmodels / call | / compute | means differ by |\n" + "| --- " * 9 + "|")
    with blockd.local_server(options.blockd) as server, server.connect() as client:
        for name, make in WORK.items():
            model = make()
            y = model["y"] if model["y"].ndim == 3 else model["y"][None]
            few = y[:50]  # of many series statsmodels smooths some, one after another
            smoothers = [[theirs(model, one, tolerance) for one in few] for tolerance in (None, 0)]
            times: "dict[str, list[float]]" = {}
            forms = [form for form in FORMS if is_smoothed(client, model, form)]  # and warms up
            for _ in range(options.rounds):
                for kind, some in zip(("steady", "plain"), smoothers):
                    took, found = seconds(lambda some=some: [one.smooth() for one in some])
                    times.setdefault(kind, []).append(took * len(y) / len(few))
                for form in forms:
                    took, ours = seconds(lambda form=form: client.smooth(**model, form=form))
                    times.setdefault(form, []).append(took)
                    times.setdefault(f"{form} compute", []).append(ours.cost.compute_seconds)
            apart = np.abs(ours.means.reshape(y.shape[0], y.shape[1], -1)[0] - found[0].smoothed_state.T).max()
            ms = {kind: 1e3 * statistics.median(some) for kind, some in times.items()}
            for form in forms:
                call, compute = ms[form], ms[f"{form} compute"]
                print(f"| {name} | {form} | {call:.2f} | {compute:.3f} | {ms['steady']:.2f} | {ms['plain']:.2f} | "
                      f"{ms['steady'] / call:.1f}x | {ms['steady'] / compute:.1f}x | {apart:.0e} |")


if __name__ == "__main__":
    main()
