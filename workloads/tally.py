"""What became of the recorded sessions: every one that is read is kept or dropped for a reason."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

REASON_SHOWN = 240
NUMBER = re.compile(r"\d+")


@dataclass(slots=True, kw_only=True)
class Tally:
    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Sessions, by reason; ``read`` is ``kept`` and these."""
    losses: Counter[str] = field(default_factory=Counter)
    """What kept sessions lack, by reason."""
    first_refused: str | None = None
    """The whole message about the first session that could not be rendered."""

    def drop(self, reason: str) -> None:
        self.dropped[reason] += 1

    def refuse(self, session_id: str, message: str) -> None:
        """Drop a session for a message of its own; messages that differ in numbers only are one reason."""
        self.first_refused = self.first_refused or message
        reason = NUMBER.sub("…", message.removeprefix(f"{session_id}: "))
        self.drop(reason if len(reason) <= REASON_SHOWN else f"{reason[:REASON_SHOWN]}…")

    def all_losses(self) -> Mapping[str, int]:
        """Losses and dropped sessions together, as a run records them."""
        dropped = {f"sessions dropped: {reason}": count for reason, count in self.dropped.items()}
        return dict(+self.losses) | dropped
