"""Gives back what a client's handles stand for: each that Python forgets, and at the end all. Internal.

Python forgets wherever it collects, in any thread and in the middle of anything, so a handle that goes only
puts its names into a queue. A thread of the client's own empties that with blocking calls, for the asyncio
client too: its event loop may be over by then.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from typing import Callable, Optional, Union

from blockd import errors
from blockd._calls import CLOSE_SECONDS, Core
from blockd._operations import others
from blockd._operations.held import Held, Names
from blockd._sync import Runner

_SECONDS = 10.0  # of a Release with its retries
_MOST = 10_000  # in one call; the server's limit
_Item = Union[Names, threading.Event, None]  # to be released; to be set when all before it are; the end

_exit_until: Optional[float] = None


class BlockingRunner:
    """Made when it is first asked for: of a client that has none itself."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._made: Optional[Runner] = None

    def get(self) -> Runner:
        if self._made is None:
            self._made = Runner(self._core)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class Releases:
    """Thread-safe. In a process that was forked from the client's it does nothing."""

    def __init__(self, core: Core, runner: Callable[[], Runner]) -> None:
        self._core = core
        self._runner = runner
        # Lockless: handles leave both while a lock may be held.
        self._owned: "set[Held]" = set()
        self._queue: "queue.SimpleQueue[_Item]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._closed = False
        self._process = os.getpid()

    def serve(self, client: object) -> None:
        """Until the client is closed, is forgotten itself, or Python ends."""
        weakref.finalize(client, self._queue.put, None).atexit = False

    def own(self, held: Held) -> None:
        """A handle has it. ConfigurationError if the client was closed meanwhile; it is given back then."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._closed:
                self._owned.add(held)
                if self._thread is None:
                    self._start()
                return
        names = held.take()
        if names is not None:
            threading.Thread(target=self._give_back_late, args=(names,), daemon=True).start()
        raise errors.closed("client")

    def _start(self) -> None:
        # These run latest first, so a LocalServer that was there before the client ends after this.
        self._at_exit = weakref.finalize(self, self._exit)
        thread = threading.Thread(target=self._work, name="blockd-release", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the next handle may find a thread
            self._at_exit.detach()
        else:
            self._thread = thread

    def disown(self, held: Held) -> Optional[Names]:
        """What its handle lets go of; None if that was before."""
        self._owned.discard(held)
        return held.take()

    def forget(self, held: Held) -> None:
        """Of `__del__`."""
        names = self.disown(held)
        if names is not None and os.getpid() == self._process:
            self._queue.put(names)

    def flush(self, seconds: float) -> None:
        """Waits, at most so long, until what was forgotten is released."""
        if self._thread is None or not self._thread.is_alive():
            return
        mark = threading.Event()
        self._queue.put(mark)
        mark.wait(min(seconds, _SECONDS))

    def close(self, seconds: Optional[float] = None) -> None:
        """Releases all, and waits for that at most so long; None: CLOSE_SECONDS."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None or thread is threading.current_thread() or os.getpid() != self._process:
            return
        self._queue.put(None)
        thread.join(CLOSE_SECONDS if seconds is None else seconds)

    def _exit(self) -> None:
        """Of all clients together no longer than of one."""
        global _exit_until
        if _exit_until is None:
            _exit_until = time.monotonic() + CLOSE_SECONDS
        self.close(max(0.0, _exit_until - time.monotonic()))

    def _work(self) -> None:
        ending = False
        while not ending:
            handles: "dict[str, list[bytes]]" = {}  # of each route
            marks: "list[threading.Event]" = []
            item = self._queue.get()
            while True:
                if item is None:
                    ending = True
                elif isinstance(item, threading.Event):
                    marks.append(item)
                else:
                    handles.setdefault(item.route, []).extend(filter(None, item.handles))
                if self._queue.empty():
                    break
                item = self._queue.get()
            if ending:
                self._take_all(handles)
            else:
                self._leave_owned(handles)
            self._give_back(self._runner, handles)
            for mark in marks:
                mark.set()
        self._at_exit.detach()

    def _leave_owned(self, handles: "dict[str, list[bytes]]") -> None:
        """What another handle of the client has too, as one that was adopted."""
        owned = {name for held in self._owned.copy() for name in held.names.handles}
        for route, some in handles.items():
            handles[route] = [name for name in some if name not in owned]

    def _take_all(self, handles: "dict[str, list[bytes]]") -> None:
        while self._owned:
            names = self._owned.pop().take()
            if names is not None:
                handles.setdefault(names.route, []).extend(filter(None, names.handles))

    def _give_back(self, runner: Callable[[], Runner], handles: "dict[str, list[bytes]]") -> None:
        """Without complaint: what is not reached falls to lease, expiry and eviction."""
        for route, some in handles.items():
            for first in range(0, len(some), _MOST):
                names = Names(some[first:first + _MOST], route, 0)
                try:
                    runner().run(others.release(self._core, names, _SECONDS))
                except Exception:  # nobody is there to hear of it
                    pass

    def _give_back_late(self, names: Names) -> None:
        runner = Runner(self._core)
        self._give_back(lambda: runner, {names.route: [one for one in names.handles if one]})
        runner.close()
