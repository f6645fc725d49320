"""When to try again, and when to give up. Pure but for the budget's lock. Internal."""

from __future__ import annotations

import random
import threading
from typing import Optional

from blockd._options import Retry
from blockd.errors import BlockdError, waiting_helps


class RetryBudget:
    """What all calls of a client may retry together; each call brings a share of one. Thread-safe."""

    def __init__(self, options: Retry) -> None:
        self._options = options
        self._tokens = options.budget_burst
        self._lock = threading.Lock()
        self.retries = 0
        self.over_budget = 0

    def count_call(self) -> None:
        with self._lock:
            self._tokens = min(self._tokens + self._options.budget_ratio,
                               self._options.budget_burst)

    def take(self) -> bool:
        with self._lock:
            if self._tokens < 1:
                self.over_budget += 1
                return False
            self._tokens -= 1
            self.retries += 1
            return True


class Backoff:
    """Of one call. Exponential, with jitter; never before the delay that the server asks for."""

    def __init__(self, options: Retry, deadline: float, budget: RetryBudget) -> None:
        self._options = options
        self._deadline = deadline
        self._budget = budget
        self._delay = options.initial_delay
        self._growth = 1.0  # of what the server asks for
        self.attempts = 0

    def next(self, error: BlockdError, now: float) -> Optional[float]:
        """Seconds to wait after an attempt that failed at `now`; None: the error is final."""
        self.attempts += 1
        if not waiting_helps(error) or self.attempts >= self._options.max_attempts:
            return None
        wait = self._delay * (0.5 + 0.5 * random.random())
        self._delay = min(self._delay * self._options.multiplier, self._options.max_delay)
        asked = error.retry_after
        if asked is not None:
            most = max(asked, self._options.max_delay)
            wait = max(wait, min(asked * self._growth, most) * (1 + 0.5 * random.random()))
            self._growth *= self._options.multiplier
            if now + wait >= self._deadline:
                wait = asked  # better soon than not at all
        if now + wait >= self._deadline or not self._budget.take():
            return None
        return wait
