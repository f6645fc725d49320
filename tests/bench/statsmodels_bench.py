#!/usr/bin/env python3
"""Smooth of Mauna Loa's carbon dioxide, T = 2284 and 8 states, beside statsmodels on the same machine.

  pip install statsmodels numpy grpcio protobuf
  PYTHONPATH=client/python python3 tests/bench/statsmodels_bench.py --blockd=build/release/bin/blockd [--rounds=9]

A trend and three harmonics of the year; smoothed states and their covariances from both. statsmodels smooths with
its compiled Kalman smoother alone, and as `UnobservedComponents.smooth` does. Rounds alternate; medians count.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any, Callable

import numpy as np
import statsmodels
from statsmodels.datasets import co2
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother
from statsmodels.tsa.statespace.structural import UnobservedComponents

import blockd

HARMONICS, WEEK, YEAR = 3, 7, 365.25
VARIANCES = np.array([0.0909, 0.0128, 4e-8, 1.08e-5])  # of an observation, the level, the slope, a harmonic


def model() -> "dict[str, Any]":
    n = 2 + 2 * HARMONICS
    F, H = np.zeros((n, n)), np.zeros((1, n))
    F[0, 0] = F[0, 1] = F[1, 1] = H[0, 0] = 1
    for k in range(HARMONICS):
        first, angle = 2 + 2 * k, 2 * math.pi * (k + 1) * WEEK / YEAR
        F[first, first] = F[first + 1, first + 1] = math.cos(angle)
        F[first, first + 1], F[first + 1, first] = math.sin(angle), -math.sin(angle)
        H[0, first] = 1
    return {"F": F, "H": H, "Q": np.diag(np.r_[VARIANCES[1:3], np.full(n - 2, VARIANCES[3])]), "R": VARIANCES[:1, None]}


def statsmodels_smoother(y: Any, given: "dict[str, Any]") -> KalmanSmoother:
    n = len(given["F"])
    smoother = KalmanSmoother(k_endog=1, k_states=n, k_posdef=n)
    smoother.bind(y.copy())
    smoother["selection"] = np.eye(n)
    for theirs, ours in (("transition", "F"), ("design", "H"), ("state_cov", "Q"), ("obs_cov", "R")):
        smoother[theirs] = given[ours]
    smoother.initialize_approximate_diffuse(1e6)
    return smoother


def seconds(call: "Callable[[], Any]") -> "tuple[float, Any]":
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blockd", required=True, help="the server's program")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    y = co2.load_pandas().data["co2"].to_numpy(float)[:, None]
    given = model()
    smoother = statsmodels_smoother(y, given)
    components = UnobservedComponents(y, "lltrend", freq_seasonal=[{"period": YEAR / WEEK, "harmonics": HARMONICS}])
    times: "dict[str, list[float]]" = {"call": [], "compute": [], "smoother": [], "components": []}
    with blockd.local_server(options.blockd) as server, server.connect() as client:
        for turn in range(options.rounds + 1):
            call, ours = seconds(lambda: client.smooth(y=y, **given))
            alone, theirs = seconds(smoother.smooth)
            whole, _ = seconds(lambda: components.smooth(VARIANCES))
            if turn > 0:  # the first one warms up
                for name, value in zip(times, (call, ours.cost.compute_seconds, alone, whole)):
                    times[name].append(value)
    apart = np.abs(ours.means.reshape(len(y), -1)[:, 0] - theirs.smoothed_state[0]).max()
    middle = {name: statistics.median(some) for name, some in times.items()}
    print(f"statsmodels {statsmodels.__version__}; levels differ by at most {apart:.1e} ppm (theirs begins with a variance of 1e6)")
    print("| work | ms | blockd's call | blockd's compute |\n| --- | --- | --- | --- |")
    for name, what in (("call", "blockd, the call"), ("compute", "blockd, compute"), ("smoother", "KalmanSmoother.smooth"),
                       ("components", "UnobservedComponents.smooth")):
        print(f"| {what} | {1e3 * middle[name]:.2f} | {middle[name] / middle['call']:.1f}x | {middle[name] / middle['compute']:.1f}x |")


if __name__ == "__main__":
    main()
