"""What a handle of either client knows without asking the server. Internal."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from blockd import _wire, errors, results
from blockd._calls import Unique
from blockd._operations.factor import Made
from blockd._operations.held import Held
from blockd._operations.release import Releases


class Factorization(Unique):
    """The factorization of A, or of a batch of K of them, on the server."""

    _held: Held
    _releases: Releases
    _instead = ("it owns what the server holds, and releases that. Share the object itself; for another "
                "process, call detach() and there client.adopt(id, route)")

    def __init__(self, held: Held, releases: Releases, made: Optional[Made] = None) -> None:
        #: Of a batch that was factored with `partial=True`: the index of each system that failed.
        self.failures: dict[int, errors.BlockdError] = {}
        #: Bytes on the device for each system.
        self.factor_bytes: Optional[int] = None
        #: Whether the idempotency key was that of a held factorization.
        self.found = False
        #: What the last factor or refactor took.
        self.cost: Optional[results.Cost] = None
        self._systems: "list[Any]" = []
        self._padding_logdet = 0.0
        if made is not None:
            self._note(made)

        self._held = held
        self._releases = releases
        releases.own(held)

    def __del__(self) -> None:
        if getattr(self, "_releases", None) is not None:
            self._releases.forget(self._held)

    def detach(self) -> "tuple[bytes, ...]":
        """Lets go of it and leaves it on the server, to its lease, expiry and eviction. Returns `ids`.

        `Client.adopt` takes each of them, with `route`, in this process or another one. The handle is as
        good as released.
        """
        self._releases.disown(self._held)
        return self.ids

    def _note(self, made: Made) -> None:
        self.failures = made.failures()
        self.factor_bytes = made.reply.factor_bytes
        self.found = made.reply.found
        self.cost = results.cost(made.reply.cost)
        self._systems = list(made.reply.system)
        self._padding_logdet = made.padding_logdet

    @property
    def num_systems(self) -> Optional[int]:
        """K of a batch; None of one system."""
        return self._held.shape.systems if self._held.shape.batched else None

    @property
    def num_blocks(self) -> int:
        """N."""
        return self._held.shape.num_blocks

    @property
    def block_size(self) -> int:
        """n."""
        return self._held.shape.block_size

    @property
    def arrow_size(self) -> int:
        """p, the rows of the border; 0: none."""
        return self._held.shape.arrow_size

    @property
    def padding(self) -> int:
        """Rows at the end of the last block that are none of A's: see `from_scipy_sparse`."""
        return self._held.shape.padding

    @property
    def shape(self) -> tuple[int, int]:
        """Of each matrix: (N n, N n), with a border (N n + p, N n + p); without padding."""
        return self._held.shape.rows, self._held.shape.rows

    @property
    def dtype(self) -> "np.dtype[Any]":
        """float64 or float32: of the matrix, and so of the solutions."""
        found: "np.dtype[Any]" = self._held.shape.dtype.newbyteorder("=")
        return found

    @property
    def ids(self) -> "tuple[bytes, ...]":
        """The names on the server, one a system; empty bytes for one that failed."""
        return tuple(self._held.names.handles)

    @property
    def route(self) -> str:
        """Which server holds it, behind a router; empty without one."""
        return self._held.names.route

    @property
    def released(self) -> bool:
        return self._held.released

    @property
    def restores(self) -> int:
        """How often it was factored again (`heal`)."""
        return self._held.healer.restores if self._held.healer else 0

    @property
    def logdet(self) -> Any:
        """log det A: a float; (K,) of a batch, NaN where a system failed.

        It is off by at most -rows log(1 - c), c = `backward_error_bound` times the condition number,
        and unknown from c = 1 on, which float32 reaches soon.

        ValueError unless the last factor or refactor had `logdet=True`.
        """
        values = [_wire.log_determinant(one, self._padding_logdet) for one in self._systems]
        if all(value is None for value in values):
            raise ValueError("no log-determinant was asked for; factor with logdet=True")
        return self._each([np.nan if value is None else value for value in values])

    @property
    def growth(self) -> Any:
        """How much the inverted blocks magnify rounding errors, >= 1; (K,) of a batch."""
        return self._each([one.growth for one in self._known()])

    @property
    def backward_error_bound(self) -> Any:
        """What is promised of solves that measure nothing; (K,) of a batch."""
        return self._each([one.backward_error_bound for one in self._known()])

    @property
    def condition_estimate(self) -> Any:
        """Of A, 1-norm, a lower bound; (K,) of a batch.

        ValueError unless it was asked for.
        """
        if not any(one.HasField("condition_estimate") for one in self._systems):
            raise ValueError("no condition was asked for; factor with condition_estimate=True")
        return self._each([one.condition_estimate for one in self._systems])

    @property
    def matrix_kept(self) -> Any:
        """Whether residuals and refinement are possible; (K,) of a batch."""
        values = [bool(one.matrix_kept) for one in self._known()]
        return np.array(values) if self._held.shape.batched else values[0]

    def _known(self) -> "list[Any]":
        if not self._systems:
            raise ValueError("not known of an adopted handle; its info() says it")
        return self._systems

    def _each(self, values: "list[float]") -> Any:
        return np.array(values) if self._held.shape.batched else float(values[0])

    def __repr__(self) -> str:
        shape = self._held.shape
        batch = f"K={shape.systems}, " if shape.batched else ""
        border = f"p={shape.arrow_size}, " if shape.arrow_size else ""
        state = ", released" if self.released else ""
        return (f"<{type(self).__module__}.{type(self).__name__} {batch}N={shape.num_blocks}, "
                f"n={shape.block_size}, {border}{self.dtype}{state}>")
