"""How late the event loop handles what is ready, probed while it measures.

A timer of the kernel (timerfd) becomes readable at known times, as a socket does when bytes arrive; the time from
then to its callback is the time by which the loop would stamp those bytes late. ``asyncio.sleep`` can't tell, as
uvloop's timers are a millisecond coarse.
"""

import asyncio
import ctypes
import os
import struct
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PERIOD_NS = 31_000_000
"""No multiple of the pace that tokens tend to come at; 100 probes take 3 s, and a third of a percent of a core."""
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
Span = tuple[int, int]


class _Interval(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("period_s", "period_ns", "first_s", "first_ns")]


@dataclass(frozen=True, slots=True)
class Lags:
    """Probe ``k`` was due at ``first_ns + k * period_ns`` and handled ``late_us[k]`` later; missed ones count too."""

    first_ns: int
    period_ns: int = PERIOD_NS
    late_us: "array[int]" = field(default_factory=lambda: array("I"))

    def within(self, spans: Iterable[Span]) -> list[float]:
        """Seconds late, of the probes that were due while an answer was awaited.

        After an answer's end nothing is stamped, so that a probe of its span is at most late until then.

        Args:
            spans: ``(sent_ns, end_ns)`` of each request.
        """
        found = []
        for start, end in united(spans):
            first = max(0, -((self.first_ns - start) // self.period_ns))
            for k in range(first, min(len(self.late_us), (end - self.first_ns) // self.period_ns + 1)):
                left_ns = end - (self.first_ns + k * self.period_ns)
                found.append(min(self.late_us[k] * 1000, left_ns) / 1e9)
        return found


def united(spans: Iterable[Span]) -> Sequence[Span]:
    """The spans without overlaps, in order."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole


class LagProbe:
    """Probes the running event loop between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.lags = Lags(time.perf_counter_ns() + PERIOD_NS)

    def start(self) -> None:
        first_s, first_ns = divmod(self.lags.first_ns, 10**9)
        timing = _Interval(0, PERIOD_NS, first_s, first_ns)
        if self._libc.timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(timing), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._loop.add_reader(self._timer, self._fired)

    def stop(self) -> Lags:
        self._loop.remove_reader(self._timer)
        os.close(self._timer)
        return self.lags

    def _fired(self) -> None:
        (expirations,) = struct.unpack("Q", os.read(self._timer, 8))
        now_ns, late_us = time.perf_counter_ns(), self.lags.late_us
        for _ in range(expirations):
            due_ns = self.lags.first_ns + len(late_us) * PERIOD_NS
            late_us.append(min((now_ns - due_ns) // 1000, 0xFFFFFFFF))
