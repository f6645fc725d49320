"""The level of the Nile: a hundred yearly flows at Aswan, smoothed, with the years that stand out.

    python nile.py [TARGET]     without a target it starts a server of its own

The local level model: y(t) = level(t) + v, level(t+1) = level(t) + w, with the variances that J. Durbin
and S. J. Koopman estimate (Time Series Analysis by State Space Methods, 2001). Nothing is known of the
first level: the model is diffuse. The data: G. W. Cobb, The problem of the Nile, Biometrika 65 (1978).
"""

from __future__ import annotations

import sys
from typing import Any, Optional

import numpy as np

import blockd

FIRST_YEAR = 1871
FLOW = np.array([  # in 1e8 cubic metres
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740], float)
MODEL: dict[str, Any] = {"F": 1, "Q": 1469.1, "H": 1, "R": 15099}


def run(client: blockd.Client) -> None:
    found = client.smooth(**MODEL, y=FLOW, residuals=True)
    level, deviation = found.means[:, 0], np.sqrt(found.covariances[:, 0, 0])
    print(f"log-likelihood {found.log_likelihood:.2f}")
    for year in range(FIRST_YEAR, FIRST_YEAR + len(FLOW), 20):
        t = year - FIRST_YEAR
        print(f"{year}: flow {FLOW[t]:5.0f}, level {level[t]:6.1f} +- {deviation[t]:.1f}")
    far = np.flatnonzero(np.abs(found.standardized_residuals) > 2.5)
    print("far from their level:", ", ".join(str(FIRST_YEAR + t) for t in far))

    # What was not measured is known less well, and the more so the farther away the next year is.
    gap = FLOW.copy()
    gap[20:40] = np.nan
    without = client.smooth(**MODEL, y=gap, num_samples=3, seed=1)
    print(f"1900 from the other years: {without.means[29, 0]:.0f} +- "
          f"{np.sqrt(without.covariances[29, 0, 0]):.0f}, and it was {level[29]:.0f}; three possible "
          f"levels: {without.samples[:, 29, 0].round().tolist()}")
    assert abs(level[0] - 1111.0) < 1 and without.covariances[29, 0, 0] > found.covariances[29, 0, 0]


def main(target: Optional[str] = None) -> None:
    if target is not None:
        with blockd.connect(target) as client:
            run(client)
        return
    with blockd.local_server() as server, server.connect() as client:
        run(client)


if __name__ == "__main__":
    main(*sys.argv[1:2])
