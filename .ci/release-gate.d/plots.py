"""Checks that the cockpit's plots have curves, by the JSON of `gui --demo --page cockpit --screenshot`.

Only the plots that every computer has are checked; each must have values of several seconds.
"""

WANTED = {
    "rate": "tokens_per_second",
    "acceptance": "acceptance_percent",
    "host": "host_memory_used_mib",
    "processor": "host_cpu_percent",
}
LEAST = 20


def draws_curves(report: dict[str, dict[str, dict[str, int]]]) -> tuple[bool, str]:
    """Return whether each plot has enough points, and a text with their numbers."""
    plots = report.get("plots", {})
    drawn = {plot: plots.get(plot, {}).get(curve, 0) for plot, curve in WANTED.items()}
    text = "; ".join(f"{plot}: {len(plots.get(plot, {}))} curves, {points} points" for plot, points in drawn.items())
    return min(drawn.values()) >= LEAST, text
