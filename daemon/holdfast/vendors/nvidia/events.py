"""Hears NVML's events: its wait blocks for seconds and cannot be cut short, so it has a thread."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import structlog
from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.model.nvidia.gpu import GpuEvent
from holdfast.runtime.clock import backoff

if TYPE_CHECKING:  # it loads NVML
    from holdfast.host.nvidia.nvml import Nvml

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_RETRY = 1.0
_LAST_RETRY = 60.0
_OVERDUE = 5.0
"""How much longer than asked a wait may take before nothing can be said to be heard, in seconds."""


class Wanted(Struct, frozen=True, kw_only=True):
    """Whose events are wanted.

    `library` as `GpuReading` has it; another `generation` is the same library, begun anew.
    """

    library: str
    uuids: tuple[str, ...]
    generation: int = 0


class GpuEars:
    """One daemon thread that subscribes, waits, and hands each event to the loop at once.

    It has an NVML of its own, begun and ended on its own thread: an event set that is freed while
    somebody waits on it is the end of the process. Where waiting fails it tries anew, ever more
    seldom; an NVML that fails at once must not keep a core busy.
    """

    def __init__(
        self,
        source: Callable[[str], "Nvml"],
        *,
        event: Callable[[GpuEvent], None],
        heard: Callable[[Mapping[str, str]], None],
        wait: float,
    ) -> None:
        """Call *event* on the running loop for each event; *source* makes one of a library.

        *heard* is called with why some GPUs cannot be heard, by UUID, whenever that may have
        changed; what happened before is not told. *wait* is how long one wait blocks, in seconds.
        """
        self._source = source
        self._event = event
        self._heard = heard
        self._wait = wait
        self._loop = asyncio.get_running_loop()
        self._wanted: Wanted | None = None
        self._changed = threading.Event()
        self._closed = False
        self._works = False
        self._due: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def overdue(self) -> bool:
        """Tell whether NVML has not come back from a call for far too long."""
        due = self._due
        return due is not None and time.monotonic() > due

    def want(self, wanted: Wanted | None) -> None:
        """Listen for *wanted* from now on, or for nothing; a wait that runs is seen to its end."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._changed.set()
        if wanted is not None and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpu-events", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Hear of nothing more; the thread ends after its wait."""
        self._closed = True
        self._changed.set()

    def _work(self) -> None:
        retries = backoff(_FIRST_RETRY, _LAST_RETRY)
        while not self._closed:
            self._changed.clear()
            wanted = self._wanted
            if wanted is None:
                self._changed.wait()
                continue
            try:
                self._works = False
                self._listen(wanted)
            except HoldfastError as error:
                log.warning("cannot receive GPU events", reason=str(error))
                self._tell(self._heard, dict.fromkeys(wanted.uuids, str(error)))
                if self._works:
                    retries = backoff(_FIRST_RETRY, _LAST_RETRY)
                # A change of what is wanted is worth a new try at once.
                self._changed.wait(next(retries))

    def _listen(self, wanted: Wanted) -> None:
        """Hand on events until something else is wanted."""
        source = self._source(wanted.library)
        try:
            self._due = time.monotonic() + _OVERDUE
            source.open()
            unheard = source.subscribe(wanted.uuids)
            self._tell(self._heard, unheard)
            while not (self._closed or self._changed.is_set()):
                self._due = time.monotonic() + self._wait + _OVERDUE
                event = source.wait_event(self._wait)
                if self.overdue:  # somebody may have said that nothing is heard
                    self._tell(self._heard, unheard)
                self._works = True
                if event is not None:
                    self._tell(self._event, event)
        finally:
            self._due = None
            source.close()

    def _tell(self, told: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop closed while we were away
            self._loop.call_soon_threadsafe(told, what)
