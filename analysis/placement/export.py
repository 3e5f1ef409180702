"""The lab's findings for programs: the miss curve and every placement as CSV, the residency for the engine."""

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analysis.placement.study import Reuse, Room
from engines.ostinato.planner import residency
from engines.ostinato.planner.residency import Residency
from engines.ostinato.planner.simulate import Outcome


def write(
    folder: Path, page: str, found: Reuse, made: Sequence[tuple[Room, Outcome]], kept: Residency | None
) -> None:
    """``placement.txt``, ``miss_curve.csv``, ``placements.csv`` and, where sizes are known, ``residency.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "placement.txt").write_text(page + "\n", encoding="utf-8")
    with (folder / "miss_curve.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["slots_per_layer", "misses_per_step"])
        rows.writerows(enumerate(found.misses.tolist()))
    with (folder / "placements.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["room", "pool_bytes", *asdict(made[0][1])])
        table.writeheader()
        for room, outcome in made:
            table.writerow({"room": room.name, "pool_bytes": sum(room.pool_bytes), **asdict(outcome)})
    if kept is not None:
        residency.write(folder / "residency.json", kept)
