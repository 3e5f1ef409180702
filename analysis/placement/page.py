"""The lab's findings as a page of text."""

from collections.abc import Sequence

from analysis.placement.machines import Machine
from analysis.placement.measured import Check
from analysis.placement.study import MOST_TOKENS, Reuse, Room, Routes
from engines.ostinato.placement.kv_split import Split, SplitBudget
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.explain import table
from engines.ostinato.planner.simulate import Outcome

GIB = 1 << 30
ABSENT = "–"


def heading(name: str, routes: Routes) -> str:
    steps = len(routes.judged.experts_NLK)
    if routes.drawn:
        learnt = (
            f"only counts were recorded: {steps:,} steps are drawn from them, their experts independent, so "
            "reuse, caches and borrowing are estimates; coverage of fixed residents is not"
        )
        return f"{_title(name, routes)}\n{learnt}"
    learnt = (
        "one request is both what placements learn from and what they are judged by, which flatters those that learn"
        if routes.same
        else f"placements learn from {routes.development.decode_steps:,} decode steps, are judged by {steps:,} others"
    )
    return f"{_title(name, routes)}\n{learnt}"


def _title(name: str, routes: Routes) -> str:
    layers, experts = routes.judged.shape
    return (
        f"Placement lab: {name}\n{layers} layers of {experts} experts, {routes.judged.experts_NLK.shape[2]} a token; "
        f"model {routes.judged.model_hash}, workload {routes.judged.workload_hash}"
    )


def reuse_section(found: Reuse, experts: int) -> str:
    rows = [["routes", "reuse distance"]]
    for share, distance in found.quantiles:
        rows.append([f"{share:.0%}", "not used before" if distance is None else f"≤ {distance}"])
    sizes = sorted(
        {c for c in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512) if c < experts} | {experts}
    )
    every = found.misses[0]
    curve = [["slots a layer", "misses a step", "of the routes"]]
    curve += [[str(c), f"{found.misses[c]:.2f}", f"{found.misses[c] / every:.1%}"] for c in sizes]
    return (
        "Reuse: other experts of the layer used since this one\n"
        f"{table(rows)}\n{found.first_uses:.2%} of the routes are first uses\n\n"
        f"Miss curve of least-recently-used caches, one a layer\n{table(curve)}"
    )


def outcome_section(made: Sequence[tuple[Room, Outcome]], *, known_sizes: bool) -> str:
    parts = []
    for room in dict.fromkeys(room for room, _ in made):
        found = [outcome for at, outcome in made if at is room]
        slow = next((one.decode_step_ms for one in found if one.policy == "layers"), None)
        rows = [["placement", "on GPUs", "coverage", "CPU routes", "copies", "beside", "step ms", "against layers"]]
        for one in found:
            against = None if one.decode_step_ms is None or slow is None else slow / one.decode_step_ms
            rows.append(
                [
                    one.policy,
                    f"{one.slots:,}",
                    f"{one.coverage:.1%}",
                    f"{one.cpu_routes:.2f}",
                    f"{one.copies:.2f}",
                    f"{one.background_copies:.2f}",
                    ABSENT if one.decode_step_ms is None else f"{one.decode_step_ms:.2f}",
                    ABSENT if against is None else f"{against:.2f}×",
                ]
            )
        size = f", {sum(room.pool_bytes) / GIB:.2f} GiB for experts" if known_sizes else ""
        parts.append(f"Placements with {room.name}{size}\n{table(rows)}")
    return "\n\n".join(parts) + (
        "\nCPU routes: computed on the CPU, a step; copies: experts that a step waits for; beside: experts copied in "
        "the background"
    )


def gain_section(machine: Machine, made: Sequence[tuple[Room, Outcome]]) -> str:
    """What our placement gains there over the others."""
    steps = {outcome.policy: outcome.decode_step_ms for _, outcome in made if outcome.decode_step_ms is not None}
    ours = steps.get("ostinato", steps.get("ostinato:borrow=false"))
    if ours is None:
        return ""
    others = [(name, ms) for name, ms in steps.items() if not name.startswith("ostinato") and ms is not None]
    lines = [f"On {machine.name} ({machine.source}) a decode step of Ostinato is predicted to take {ours:.2f} ms:"]
    lines += [
        f"  {ms / ours:.2f}× as fast as {name} ({ms:.2f} ms)" for name, ms in sorted(others, key=lambda o: o[1])
    ]
    return "\n".join(lines)


def anchor_section(alone: Calibration, anchored: Calibration) -> str:
    return (
        f"A whole decode step of the calibration took {alone.decode_step_ms:.2f} ms with {alone.resident_experts:,} "
        f"residents, so {anchored.dense_step_ms:.2f} ms lie outside the MoE layers ({alone.dense_step_ms:.2f} ms "
        "when measured by themselves)"
    )


def threshold_section(predicted: int | None, measured: int | None, *, fitted: bool, swept_to: int | None) -> str:
    """``swept_to``: the largest prefill that the calibration measured; None where it measured none."""
    lines = ["Prefill: from how many tokens on uploading each cold expert once is faster than splitting the routes"]
    if swept_to is not None:
        lines.append(f"measured by the calibration: {_tokens(measured, swept_to)}")
    lines.append(
        f"predicted with this residency: {_tokens(predicted, MOST_TOKENS)}"
        if fitted
        else "predicted: not to be had; it needs a sweep of three sizes or more in the model's form, or --machine"
    )
    return "\n".join(lines)


def split_section(rows: Sequence[tuple[str, SplitBudget, Split]]) -> str:
    cells = [["split", "sequences", "slots a layer", "GiB of experts", "GiB of KV", "tokens of KV"]]
    for rule, budget, split in rows:
        cells.append(
            [
                rule,
                str(budget.sequences),
                str(split.caps),
                f"{split.caps * budget.cap_bytes / GIB:.2f}",
                f"{split.blocks * budget.block_bytes / GIB:.2f}",
                f"{split.blocks * budget.block_tokens:,}",
            ]
        )
    return f"One budget between experts and KV cache (paging; mv_wsa is MV-WSA)\n{table(cells)}"


def check_section(found: Sequence[Check]) -> str:
    rows = [["run", "placement", "resident", "predicted ms", "measured ms", "error"]]
    for one in found:
        numbers = [f"{one.slots:,}", f"{one.predicted_ms:.2f}", f"{one.measured_ms:.2f}", f"{one.error:+.1%}"]
        rows.append([one.run, one.placement, *numbers])
    worst = max(found, key=lambda one: abs(one.error))
    return f"Decode steps, predicted and measured\n{table(rows)}\nlargest error {worst.error:+.1%} ({worst.run})"


def _tokens(value: int | None, most: int) -> str:
    return f"never up to {most:,} tokens" if value is None else f"{value:,} tokens"
