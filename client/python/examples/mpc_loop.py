"""Model predictive control: an oven of several zones, whose heat moves with an air flow that changes.

    python mpc_loop.py [TARGET]     without a target it starts a server of its own

Every tick solves for the best temperatures of the horizon from where the oven is now. The matrix does not
depend on that: a tick is one solve. When the flow changes, the handle is given new values (`refactor`).
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import numpy as np

import blockd

HORIZON, ZONES, TICKS = 40, 5, 60
WANTED = 180 + 10 * np.arange(ZONES)  # degrees, zone by zone
POWER_COST = 0.05


def dynamics(flow: float) -> Any:
    """T(t+1) = G T(t) + u(t): each zone cools, and passes heat on with the flow."""
    return (0.95 - flow) * np.eye(ZONES) + flow * np.eye(ZONES, k=-1)


def horizon(G: Any) -> tuple[Any, Any]:
    """The Hessian of sum |T(t) - wanted|^2 + cost |u(t)|^2, with u(t) = T(t+1) - G T(t)."""
    D = np.tile((1 + POWER_COST) * np.eye(ZONES) + POWER_COST * G.T @ G, (HORIZON, 1, 1))
    D[-1] -= POWER_COST * G.T @ G  # nothing follows
    return D, np.tile(-POWER_COST * G, (HORIZON - 1, 1, 1))


def plan(A: blockd.Handle, G: Any, now: Any) -> Any:
    """The temperatures of the next HORIZON ticks."""
    b = np.tile(WANTED, (HORIZON, 1)).astype(float)
    b[0] += POWER_COST * G @ now
    return A.solve(b, timeout=0.5)


def by_numpy(G: Any, now: Any) -> Any:
    """The same least squares, in full: rows for what is wanted, and for the power."""
    size = HORIZON * ZONES
    steps = np.eye(size) - np.kron(np.eye(HORIZON, k=-1), G)
    known = np.zeros((HORIZON, ZONES))
    known[0] = G @ now
    rows = np.vstack([np.eye(size), np.sqrt(POWER_COST) * steps])
    right = np.concatenate([np.tile(WANTED, HORIZON), np.sqrt(POWER_COST) * known.reshape(-1)])
    return np.linalg.lstsq(rows, right, rcond=None)[0].reshape(HORIZON, ZONES)


def run(client: blockd.Client) -> None:
    oven = np.full(ZONES, 20.0)
    flow = 0.1
    G = dynamics(flow)
    with client.factor(*horizon(G), heal=True) as A:  # should the server lose it, it is made again
        for tick in range(TICKS):
            if tick % 20 == 19:
                flow += 0.1
                G = dynamics(flow)
                A.refactor(*horizon(G))
            temperatures = plan(A, G, oven)
            if tick % 10 == 0:
                assert np.abs(temperatures - by_numpy(G, oven)).max() < 1e-8
            power = temperatures[0] - G @ oven
            oven = G @ oven + power  # the first step of the plan
    print(f"after {TICKS} ticks: {np.round(oven, 1)} degrees, wanted {WANTED}")
    assert np.abs(oven - WANTED).max() < 10


def main(target: Optional[str] = None) -> None:
    if target is not None:
        with blockd.connect(target) as client:
            run(client)
        return
    with blockd.local_server() as server, server.connect() as client:
        run(client)


if __name__ == "__main__":
    main(*sys.argv[1:2])
