"""What is observed beside a run's turns: the event loop's lag, and the machine's telemetry."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engines.server import Server
from replay.lag import LagProbe, Lags
from replay.record import TurnRecord
from replay.telemetry.energy import Span, by_session
from replay.telemetry.recorder import Recorder
from replay.telemetry.settings import TelemetrySettings
from replay.telemetry.store import PARQUET_FILE, Telemetry, settle


@dataclass
class Observed:
    """None: was not observed."""

    lags: Lags | None = None
    telemetry: Telemetry | None = None
    telemetry_error: str | None = None
    attached: bool = False
    """The engine's processes are not known."""

    def summary(self, turns: list[TurnRecord]) -> dict[str, Any]:
        """The ``telemetry`` of a result."""
        found = self.telemetry
        rows = found.rows if found else ()
        return {
            "file": PARQUET_FILE if rows else None,
            "samples": len(rows),
            "every_s": found.every_s if found else None,
            "absent": dict(found.absent) if found else {"all": self.telemetry_error or "telemetry.every_s=null"},
            "error": self.telemetry_error,
            "sampler_cpu_share": sampler_cpu_share(found) if found else None,
            "pcie_link": pcie_link(found) if found else {},
            "energy_by_session": by_session(found, spans(turns)) if found else None,
        }


@dataclass
class Watch:
    """A context around the whole replay, entered in the event loop that measures; fills ``observed`` when it ends."""

    folder: Path
    settings: TelemetrySettings
    observed: Observed = field(default_factory=Observed)

    def __enter__(self) -> Self:
        self._recorder = Recorder(self.folder, self.settings) if self.settings.every_s else None
        if self._recorder:
            self._recorder.start()
        self._probe = LagProbe()
        self._probe.start()
        return self

    def follow(self, server: Server) -> None:
        """Watch the processes of this engine from now on."""
        pid = server.describe().get("pid")
        self.observed.attached = pid is None
        if self._recorder:
            self._recorder.follow({"pid": pid, "url": server.url})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.observed.lags = self._probe.stop()
        if self._recorder:
            self._recorder.stop()
            self.observed.telemetry_error = self._recorder.error
            try:
                self.observed.telemetry = settle(self.folder)
            except OSError as full:
                self.observed.telemetry_error = f"{self.folder / PARQUET_FILE}: {full.strerror}"


def spans(turns: list[TurnRecord]) -> dict[str, Span]:
    """Session → from its first request to its last byte, over the last attempt's turns."""
    found: dict[str, tuple[int, int, int]] = {}
    for turn in turns:
        if turn.sent_ns is None or turn.end_ns is None:
            continue
        attempt, start, end = found.get(turn.session_id, (-1, 0, 0))
        if turn.attempt > attempt:
            attempt, start, end = turn.attempt, turn.sent_ns, turn.end_ns
        if turn.attempt == attempt:
            found[turn.session_id] = (attempt, min(start, turn.sent_ns), max(end, turn.end_ns))
    return {session: (start, end) for session, (_, start, end) in found.items()}


def pcie_link(telemetry: Telemetry) -> dict[str, float]:
    """The fastest link that each GPU was seen with: idle ones slow theirs down, so this is the link under load."""
    rows, fastest = telemetry.rows, {}
    for name in sorted({name for row in rows for name in row if name.endswith(("_pcie_gen", "_pcie_width"))}):
        fastest[name] = max(row[name] for row in rows if name in row)
    return fastest


def sampler_cpu_share(telemetry: Telemetry) -> float | None:
    """CPU seconds that sampling took a second, in parts of one core; its start is not counted."""
    cost_s = wall_s = 0.0
    for before, after in pairwise(row for row in telemetry.rows if "harness_pid" in row):
        if before["harness_pid"] == after["harness_pid"]:
            cost_s += after["sampler_cpu_s"] - before["sampler_cpu_s"]
            wall_s += (after["t_ns"] - before["t_ns"]) / 1e9
    return cost_s / wall_s if wall_s else None
