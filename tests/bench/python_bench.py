#!/usr/bin/env python3
"""The Python client beside the C++ client, on one server, turn by turn.

  PYTHONPATH=client/python /usr/bin/python3 tests/bench/python_bench.py --programs=build/release/bin [--json=FILE --commit=NAME]

Rounds alternate, and the median of the rounds counts, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import statistics
import subprocess
import tempfile
import time
from typing import Any, Callable

import numpy as np

import blockd
from blockd import _wire
from blockd._arrays import System
from blockd._options import FactorOptions


class Bench:
    def __init__(self, programs: str, target: str, seconds: float, rounds: int) -> None:
        self._blockctl = os.path.join(programs, "blockctl")
        self._target, self.seconds, self.rounds = target, seconds, rounds
        self.rows: "list[dict[str, str]]" = []

    def of_cpp(self, operation: str, *flags: str) -> Any:
        """What `blockctl bench` says of the operation; longer, where none ended in time."""
        seconds, found = self.seconds, {}
        while operation not in found:
            out = subprocess.run(
                [self._blockctl, f"--server={self._target}", "bench", "--json", "--callers=1", "--problem=mpc",
                 "--warmup=100ms", f"--duration={seconds}s", f"--mix={operation}:1", *flags],
                check=True, capture_output=True, text=True).stdout
            found, seconds = json.loads(out)["operations"], 2 * seconds
        return found[operation]

    def compare(self, ours: Callable[[], float], theirs: Callable[[], float]) -> "tuple[float, float, float]":
        """Medians of the rounds, and how far ours are apart."""
        pairs = [(ours(), theirs()) for _ in range(self.rounds)]
        mine = [pair[0] for pair in pairs]
        middle = statistics.median(mine)
        return middle, statistics.median(pair[1] for pair in pairs), (max(mine) - min(mine)) / middle

    def note(self, work: str, ours: str, reference: str, ratio: str, goal: str,
             reached: "bool | None", spread: float) -> None:
        row = {"work": work, "Python": ours, "C++": reference, "ratio": ratio, "goal": goal,
               "reached": {True: "yes", False: "no", None: ""}[reached], "spread": f"{100 * spread:.1f}%"}
        self.rows.append(row)
        print(" | ".join(row.values()), flush=True)


def problem(N: int, n: int) -> "tuple[Any, Any]":
    return np.tile(4 * np.eye(n), (N, 1, 1)), np.tile(-np.eye(n), (N - 1, 1, 1))


def median_time(call: Callable[[], Any], seconds: float) -> float:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def small_solves(bench: Bench, client: blockd.Client) -> None:
    b = np.ones(32 * 8)
    with client.factor(*problem(32, 8)) as A:
        for _ in range(200):
            A.solve(b)
        ours, theirs, spread = bench.compare(
            lambda: median_time(lambda: A.solve(b), bench.seconds),
            lambda: bench.of_cpp("solve")["latency_seconds"]["p50"])
        bench.note("Solve, N=32 n=8 d=1, p50", f"{1e6 * ours:.0f} us", f"{1e6 * theirs:.0f} us",
                   f"+{1e6 * (ours - theirs):.0f} us", "<= +150 us", ours - theirs <= 150e-6, spread)


def pipelined(bench: Bench, client: blockd.Client) -> None:
    b = np.ones(32 * 8)
    with client.factor(*problem(32, 8)) as A, client.session() as session:
        def rate() -> float:
            sent: Any = collections.deque()
            count, begin = 0, time.perf_counter()
            while time.perf_counter() < begin + bench.seconds:
                sent.append(session.send(A, b))
                count += 1
                if len(sent) > 512:
                    sent.popleft().result()
            for pending in sent:
                pending.result()
            return count / (time.perf_counter() - begin)

        ours, theirs, spread = bench.compare(
            rate, lambda: bench.of_cpp("solve", "--session")["per_second"])
        bench.note("session, N=32 n=8 d=1, one caller (C++: one in flight)", f"{ours:.0f} solves/s",
                   f"{theirs:.0f} solves/s", f"{ours / theirs:.2f}x", ">= 8000 solves/s", ours >= 8000, spread)


def small_factors(bench: Bench, client: blockd.Client) -> None:
    """Wall and compute, and where the difference goes: to make the message, in the server, on the way."""
    for N, n, goal in ((1000, 16, 3.7e-3), (10000, 4, 3.07e-3), (100, 8, 0.515e-3)):
        D, E = problem(N, n)
        times: "list[tuple[float, ...]]" = []

        def factor() -> None:
            begin = time.perf_counter()
            A = client.factor(D, E)
            wall = time.perf_counter() - begin
            assert A.cost is not None
            times.append((wall, A.cost.compute_seconds, A.cost.queue_seconds + A.cost.upload_seconds))
            A.release()

        def ours() -> float:
            median_time(factor, bench.seconds)
            middle = [statistics.median(part) for part in zip(*times)]
            found.append(middle)
            times.clear()
            return middle[0] - middle[1]

        def theirs() -> float:
            said = bench.of_cpp("factor", f"--num_blocks={N}", f"--block_size={n}")
            walls.append((said["latency_seconds"]["p50"], said["compute_seconds"]["p50"]))
            return walls[-1][0] - walls[-1][1]

        found: "list[list[float]]" = []
        walls: "list[tuple[float, float]]" = []
        for _ in range(10):
            factor()
        times.clear()
        mine, reference, spread = bench.compare(ours, theirs)
        message = median_time(lambda: _wire.factor_request(
            System(D, E, True, False), FactorOptions().proto([], bytes(16))), bench.seconds / 4)
        wall, compute, server = (1e3 * statistics.median(part) for part in zip(*found))
        theirs_wall, theirs_compute = (1e3 * statistics.median(part) for part in zip(*walls))
        bench.note(f"Factor, N={N} n={n}: wall, of it compute", f"{wall:.2f} ms, {compute:.2f} ms",
                   f"{theirs_wall:.2f} ms, {theirs_compute:.2f} ms", f"{wall / theirs_wall:.2f}x", "", None, spread)
        bench.note(f"Factor, N={N} n={n}: wall less compute", f"{1e3 * mine:.2f} ms", f"{1e3 * reference:.2f} ms",
                   f"{mine / reference:.2f}x", f"<= {1e3 * goal:.2f} ms", mine <= goal, spread)
        bench.note(f"Factor, N={N} n={n}: of that arrays to a message, the server, the way",
                   f"{1e3 * message:.2f}, {server:.2f}, {1e3 * (mine - message) - server:.2f} ms", "", "", "", None, spread)


def uploads(bench: Bench, client: blockd.Client) -> None:
    N, n = 101, 256
    D, E = problem(N, n)
    mebibytes = (D.nbytes + E.nbytes) / 2**20
    for name, options in (("lower triangles", {}), ("lower=False", {"lower": False})):
        def factor() -> None:
            client.factor(D, E, check_finite=False, **options).release()

        ours, theirs, spread = bench.compare(
            lambda: median_time(factor, bench.seconds),
            lambda: bench.of_cpp("factor", f"--num_blocks={N}", f"--block_size={n}")["latency_seconds"]["p50"])
        bench.note(f"Factor, {mebibytes:.0f} MiB, N={N} n={n}, {name}", f"{mebibytes / ours:.0f} MiB/s",
                   f"{mebibytes / theirs:.0f} MiB/s", f"{100 * theirs / ours:.0f}%", ">= 60%",
                   theirs / ours >= 0.6, spread)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--programs", default="build/release/bin", help="folder of blockd and blockctl")
    flags.add_argument("--seconds", type=float, default=1.0, help="of each round")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--json", help="file for the result")
    flags.add_argument("--commit", default="")
    flags.add_argument("--hardware", default="")
    flags.add_argument("--note", default="")
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [os.path.join(given.programs, "blockd"), "--port=0", "--metrics_port=-1", f"--port_file={folder}/ports",
             "--drain_grace=0s", "--log_level=warn", "--device_memory=2GiB"])
        try:
            while not os.path.exists(f"{folder}/ports"):
                time.sleep(0.01)
            with open(f"{folder}/ports") as ports:
                target = "127.0.0.1:" + ports.read().split("grpc=")[1].split()[0]
            bench = Bench(given.programs, target, given.seconds, given.rounds)
            with blockd.connect(target) as client:
                for part in (small_solves, pipelined, small_factors, uploads):
                    part(bench, client)
        finally:
            server.terminate()
            server.wait()
    if given.json:
        result = {"date": datetime.date.today().isoformat(), "hardware": given.hardware,
                  "command": "tests/bench/python_bench.py", "note": given.note, "commit": given.commit, "rows": bench.rows}
        with open(given.json, "w") as out:
            json.dump(result, out, indent=2)
            out.write("\n")


if __name__ == "__main__":
    main()
