"""Kalman smoothing: a whole track from noisy positions, as one block-tridiagonal system.

    python kalman_smoothing.py [TARGET]     without a target it starts a server of its own

The smoothed states minimise the sum of squares of the prior, the dynamics and the measurements. Its
normal equations are block tridiagonal, with one block a time step, and their solution is what a Kalman
filter and a backward pass (Rauch, Tung and Striebel) compute one step after another.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import numpy as np

import blockd

STEPS, STATES = 2000, 4  # position and velocity in the plane
F = np.eye(STATES) + 0.1 * np.eye(STATES, k=2)  # x(t+1) = F x(t) + w, w ~ N(0, Q)
Q = 0.01 * np.diag([0.01, 0.01, 1, 1])
H = np.eye(2, STATES)  # y(t) = H x(t) + v, v ~ N(0, R)
R = 0.25 * np.eye(2)
P0 = 10 * np.eye(STATES)  # x(0) ~ N(0, P0)


def simulate(rng: np.random.Generator) -> tuple[Any, Any]:
    x = np.empty((STEPS, STATES))
    x[0] = rng.multivariate_normal(np.zeros(STATES), P0)
    for t in range(1, STEPS):
        x[t] = F @ x[t - 1] + rng.multivariate_normal(np.zeros(STATES), Q)
    return x, x @ H.T + rng.multivariate_normal(np.zeros(2), R, STEPS)


def normal_equations(y: Any) -> tuple[Any, Any, Any]:
    """D, E and b of A x = b, whose solution is the smoothed track."""
    Qi, Ri, P0i = np.linalg.inv(Q), np.linalg.inv(R), np.linalg.inv(P0)
    D = np.tile(H.T @ Ri @ H, (STEPS, 1, 1))
    D[0] += P0i
    D[1:] += Qi
    D[:-1] += F.T @ Qi @ F
    E = np.tile(-Qi @ F, (STEPS - 1, 1, 1))  # E[t] = A(t+1, t)
    return D, E, y @ (Ri @ H)


def rauch_tung_striebel(y: Any) -> Any:
    """The same, step by step: a Kalman filter forward, then a smoother backward."""
    predicted, covariances = np.zeros((STEPS, STATES)), np.empty((STEPS, STATES, STATES))
    filtered, filtered_covariances = np.empty_like(predicted), np.empty_like(covariances)
    covariances[0] = P0
    for t in range(STEPS):
        if t > 0:
            predicted[t] = F @ filtered[t - 1]
            covariances[t] = F @ filtered_covariances[t - 1] @ F.T + Q
        gain = np.linalg.solve(H @ covariances[t] @ H.T + R, H @ covariances[t]).T
        filtered[t] = predicted[t] + gain @ (y[t] - H @ predicted[t])
        filtered_covariances[t] = covariances[t] - gain @ H @ covariances[t]
    smoothed = filtered.copy()
    for t in range(STEPS - 2, -1, -1):
        gain = np.linalg.solve(covariances[t + 1], F @ filtered_covariances[t]).T
        smoothed[t] += gain @ (smoothed[t + 1] - predicted[t + 1])
    return smoothed


def run(client: blockd.Client) -> None:
    truth, y = simulate(np.random.default_rng(0))
    D, E, b = normal_equations(y)
    with client.factor(D, E) as A:
        x = A.solve(b)
    difference = np.abs(x - rauch_tung_striebel(y)).max()
    print(f"{STEPS} states; largest difference from the smoother: {difference:.1e}")
    print(f"error of the positions: measured {np.abs(y - truth[:, :2]).mean():.3f}, "
          f"smoothed {np.abs(x - truth)[:, :2].mean():.3f}")
    assert difference < 1e-8


def main(target: Optional[str] = None) -> None:
    if target is not None:
        with blockd.connect(target) as client:
            run(client)
        return
    with blockd.local_server() as server, server.connect() as client:
        run(client)


if __name__ == "__main__":
    main(*sys.argv[1:2])
