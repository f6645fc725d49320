"""ADMM with one factor: a signal of several channels that jumps now and then, from noisy samples.

    python admm.py [TARGET]     without a target it starts a server of its own

Minimises |x - y|^2 / 2 + w sum |x(t+1) - x(t)|_1. Each step solves with the same matrix, I + r L with the
second differences L, so it is factored once.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import numpy as np

import blockd

STEPS, CHANNELS, WEIGHT, PENALTY, ITERATIONS = 300, 6, 2.0, 3.0, 800


def signal(rng: np.random.Generator) -> tuple[Any, Any]:
    levels = rng.integers(-3, 4, (6, CHANNELS))
    truth = np.repeat(levels, STEPS // len(levels), axis=0).astype(float)
    return truth, truth + 0.5 * rng.standard_normal(truth.shape)


def differences_transposed(z: Any) -> Any:
    """G' z, where (G x)(t) = x(t+1) - x(t)."""
    return np.concatenate([-z[:1], z[:-1] - z[1:], z[-1:]])


def run(client: blockd.Client) -> None:
    truth, y = signal(np.random.default_rng(0))
    eye = np.eye(CHANNELS)
    D = np.tile((1 + 2 * PENALTY) * eye, (STEPS, 1, 1))  # I + r G'G
    D[[0, -1]] = (1 + PENALTY) * eye
    E = np.tile(-PENALTY * eye, (STEPS - 1, 1, 1))
    z = u = np.zeros((STEPS - 1, CHANNELS))
    with client.factor(D, E) as A:
        for _ in range(ITERATIONS):
            x = A.solve(y + PENALTY * differences_transposed(z - u))
            step = np.diff(x, axis=0) + u
            z = np.sign(step) * np.maximum(np.abs(step) - WEIGHT / PENALTY, 0)  # shrinks towards 0
            u = step - z
    # What a minimum must satisfy: a dual of size at most w, and no gap between primal and dual.
    dual = np.clip(PENALTY * u, -WEIGHT, WEIGHT)
    primal_value = 0.5 * ((x - y)**2).sum() + WEIGHT * np.abs(np.diff(x, axis=0)).sum()
    back = differences_transposed(dual)
    dual_value = (back * y).sum() - 0.5 * (back**2).sum()
    gap = (primal_value - dual_value) / primal_value
    print(f"{ITERATIONS} solves with one factor; relative duality gap {gap:.1e}")
    print(f"mean error: {np.abs(y - truth).mean():.3f} before, {np.abs(x - truth).mean():.3f} after")
    assert -1e-12 < gap < 1e-4
    assert np.abs(x - truth).mean() < np.abs(y - truth).mean()


def main(target: Optional[str] = None) -> None:
    if target is not None:
        with blockd.connect(target) as client:
            run(client)
        return
    with blockd.local_server() as server, server.connect() as client:
        run(client)


if __name__ == "__main__":
    main(*sys.argv[1:2])
