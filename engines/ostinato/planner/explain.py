"""What the cost model says of a residency set, beside what was measured."""

from collections.abc import Sequence

import numpy as np

from engines.ostinato.errors import SetupError
from engines.ostinato.planner import prefill_cost
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.cost import increment, overlap_bound_from_q_ms
from engines.ostinato.planner.plan import predict_from
from engines.ostinato.planner.residency import Residency
from engines.ostinato.planner.routes import RouteCounts, RouteTrace

_MOST_TOKENS = 65536


def explain(
    residency: Residency, calibration: Calibration | None = None, routes: RouteCounts | RouteTrace | None = None
) -> str:
    """A page of text. Without routes it can say less: the residency file holds none.

    Args:
        routes: of held-out sessions, or whatever the residency should be judged by. A trace gives exact step times
            where counts must assume that the experts of a step are chosen independently.

    Raises:
        SetupError: the files belong to different models.
    """
    for other, what in ((calibration, "calibration"), (routes, "routes")):
        if other is not None and other.model_hash != residency.model_hash:
            raise SetupError(
                f"the {what} are of model {other.model_hash}, the residency of {residency.model_hash}; "
                "name files of one model"
            )
    counts = routes.counts() if isinstance(routes, RouteTrace) else routes
    parts = [_residency(residency)]
    if calibration is not None:
        parts.append(_constants(calibration))
    if routes is not None and counts is not None:
        parts.append(_coverage(residency, counts))
        parts.append(_step(residency, calibration, routes))
    if calibration is not None:
        parts.append(_prefill(residency, calibration, counts))
    return "\n\n".join(part for part in parts if part)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row)).rstrip() for row in rows
    )


def _residency(residency: Residency) -> str:
    total = residency.layers * residency.experts
    held = int(residency.resident_LE.sum())
    rows = [["", "layers", "experts", "GiB"]]
    for number, pool in enumerate(residency.pools):
        span = f"{pool.layers.start}–{pool.layers.stop - 1}" if len(pool.layers) else "none"
        rows.append([f"GPU {number}", span, str(len(pool.resident)), f"{pool.pool_bytes / 2**30:.2f}"])
    how = (
        "ranked by recorded routes"
        if residency.source == "recorded"
        else "UNIFORM: no routes were recorded, every layer holds equally many"
    )
    lines = [f"Residency: {held} of {total} experts ({held / total:.1%}), {how}", table(rows)]
    if residency.coverage is not None:
        lines.append(f"development routes covered: {residency.coverage:.1%} (workload {residency.workload_hash})")
    return "\n".join(lines)


def _constants(calibration: Calibration) -> str:
    rows = [["layers", "γ0 ms", "α ms", "β ms", "G ms", "upload ms", "line off by"]]
    for group in calibration.groups:
        alpha, beta = group.line()
        r = np.arange(1, len(group.cpu_ms))
        off = float(np.abs(alpha + beta * r - group.cpu_ms[1:]).max())
        numbers = (group.cpu_ms[0], alpha, beta, group.gpu_ms, group.upload_ms, off)
        rows.append([str(len(group.layers)), *(f"{value:.3f}" for value in numbers)])
    machine = ", ".join(f"{key} {value}" for key, value in calibration.machine.items())
    lines = [f"Calibration ({machine or 'machine not named'})", table(rows)]
    costs = calibration.costs()
    if reason := costs.check():
        lines.append(f"proposition B.1 does not hold here: {reason}; steps are predicted from the shares of r")
    elif float(np.max(costs.residual)) > 0:
        share = float(np.max(costs.residual / costs.beta))
        lines.append(f"a layer's first cold route costs up to {share:.0%} of β more than the next ones")
    return "\n".join(lines)


def _coverage(residency: Residency, counts: RouteCounts) -> str:
    grown = counts.coverage(residency.grown_LE)
    here = counts.coverage(residency.resident_LE)
    line = f"Coverage of these routes (workload {counts.workload_hash}): {here:.1%}"
    return f"{line}; with 1 GiB more on every GPU {grown:.1%}" if residency.source == "recorded" else line


def _step(residency: Residency, calibration: Calibration | None, routes: RouteCounts | RouteTrace) -> str:
    cold = routes.cold(residency.resident_LE)
    grown = routes.cold(residency.grown_LE)
    costs = calibration.costs(_weights(cold.share_LR.mean(0))) if calibration else None
    now, more = predict_from(cold, costs), predict_from(grown, costs)
    rows = [["Decode step", "now", "1 GiB more"]]
    rows.append(["cold routes", f"{now.cold_routes_per_step:.2f}", f"{more.cold_routes_per_step:.2f}"])
    rows.append(["layers with one", f"{cold.q_L.sum():.2f}", f"{grown.q_L.sum():.2f}"])
    rows.append(["predicted ms", _ms(now.decode_step_ms), _ms(more.decode_step_ms)])
    if calibration is not None and calibration.decode_step_ms is not None:
        rows.append(["measured ms", _ms(calibration.decode_step_ms), ""])
    lines = [table(rows)]
    if costs is not None and costs.check() is None:
        gain = increment(costs, mu=cold.mu_L, q=cold.q_L, grown_mu=grown.mu_L, grown_q=grown.q_L)
        lines += [
            f"1 GiB more saves {gain.full:.3f} ms a step (leading order {gain.leading:.3f}; for any routes "
            f"{gain.least:.3f} to {gain.most:.3f})",
            f"no static residency of this size is more than {_ms(now.gap_bound_ms)} ms a step better",
            f"overlapping the branches hides at most {overlap_bound_from_q_ms(costs, cold.q_L):.3f} ms a step",
        ]
    if not cold.exact:
        lines.append("from counts: q assumes that the experts of a step are chosen independently; a trace is exact")
    return "\n".join(lines)


def _prefill(residency: Residency, calibration: Calibration, counts: RouteCounts | None) -> str:
    if not calibration.prefill:
        return "Prefill: no sweep was measured"
    rows = [["tokens", "split ms", "upload ms", "cooperative ms", "fastest"]]
    for point in calibration.prefill:
        numbers = [_ms(point.split_ms), _ms(point.upload_ms), _ms(point.cooperative_ms)]
        rows.append([str(point.tokens), *numbers, calibration.best_path(point.tokens)])
    measured = calibration.threshold()
    lines = ["Prefill, measured", table(rows), f"threshold Np, measured: {_tokens(measured, calibration)}"]
    if counts is not None:
        cold_LE = ~residency.resident_LE
        fitted = calibration.difference(counts.prefill_shares_LE, cold_LE)
        if fitted is None:
            lines.append("threshold Np, predicted: the sweep does not have the model's form; measure more sizes")
        else:
            now = prefill_cost.threshold(fitted, counts.prefill_shares_LE, cold_LE, most=_MOST_TOKENS)
            grown = prefill_cost.threshold(fitted, counts.prefill_shares_LE, ~residency.grown_LE, most=_MOST_TOKENS)
            lines.append(
                f"threshold Np, predicted: {_tokens(now, None)}; with 1 GiB more on every GPU {_tokens(grown, None)}"
            )
    return "\n".join(lines)


def _weights(shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float] | None:
    """How often each r ≥ 1 occurs; None where that would leave a line undetermined."""
    weights = [float(share) for share in shares[1:]]
    return weights if sum(weight > 0 for weight in weights) >= 2 else None


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _tokens(value: int | None, calibration: Calibration | None) -> str:
    if value is not None:
        return f"{value} tokens"
    most = calibration.prefill[-1].tokens if calibration else _MOST_TOKENS
    return f"none up to {most} tokens"
