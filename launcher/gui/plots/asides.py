"""Text below the number of a row, or at the end of a small row's line: short lines, and a tooltip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.gui.duration import format_duration
from launcher.gui.translation import ntr, render, tr
from launcher.machine.gpu import Reading

if TYPE_CHECKING:
    from launcher.gui.plots.samples import Samples
    from launcher.monitor.monitor import MonitorSnapshot

MEAN_S = 300.0
"""Longest time over which the mean rate is taken, in seconds."""
_MIB_PER_GIB = 1_024
Aside = tuple[str, str]
"""Up to three lines separated by newlines, and the tooltip."""


@dataclass(frozen=True, slots=True)
class PlotState:
    """The values from which the asides are made.

    `limit` is the highest rate, in tokens per second, that the memory bandwidth allows the running server, which
    started at `server_start_s`; `note` is a remark on its speed. `throttled` is the time and the reason of the last
    throttling. `drafter` is the name of what drafts there, "" for the head in the model's file.
    """

    samples: Samples
    latest: MonitorSnapshot
    limit: Reading | None = None
    note: str = ""
    server_start_s: float = float("-inf")
    throttled: tuple[float, str] | None = None
    drafter: str = ""


def rate_aside(state: PlotState) -> Aside:
    """Return the mean rate of the last five minutes, or of the time since the first reply, and its share of the limit.

    The limit belongs to the running server, so only its samples count for the mean.
    """
    samples, limit, note, server_start_s = state.samples, state.limit, state.note, state.server_start_s
    from_s, newest_s = max(samples.newest_s - MEAN_S, server_start_s), samples.newest_s
    mean = samples.mean("tokens_per_second", from_s, newest_s) if from_s <= newest_s else None
    lines = []
    if mean is not None:
        first_s = samples.first_known_time("tokens_per_second", from_s, newest_s)
        span = _format_span(newest_s - (from_s if first_s is None else first_s))
        lines.append(tr("mean of {span} {rate:,.1f}", span=span, rate=mean))
    tips = [render(note)] if note else []
    if limit is not None and limit.value:
        if mean is not None:
            share = mean / limit.value  # with drafts it may be above 1: the limit is the one without
            lines.append(
                tr("{share:.0f} % of the limit", share=100 * share)
                if share <= 1
                else tr("{times:.1f} times the limit without drafts", times=share)
            )
        tips.append(
            tr(
                "The limit is the GPU's memory bandwidth divided by the bytes read per token. MTP can exceed "
                "it, because one pass then yields several tokens."
            )
        )
    elif limit is not None:
        lines.append(tr("limit not known"))
        tips.append(render(limit.absent or ""))
    return "\n".join(lines), "\n".join(tips)


def _format_span(seconds: float) -> str:
    """Return a time span in whole seconds, from a minute on in whole minutes, so that the text changes seldom."""
    return format_duration(max(seconds, 1) if seconds < 60 else 60 * round(seconds / 60))


def drafts_aside(state: PlotState) -> Aside | None:
    """Return mean accepted length and acceptance by position, or None while nothing is drafted."""
    latest = state.latest
    length = latest.acceptance.mean_length if latest.acceptance else None
    if latest.acceptance is None or length is None:
        return None
    shares = " · ".join(f"{share:.2f}" for share in latest.acceptance.rates_by_position)
    length_text = tr("mean length {length:.2f}", length=length)
    if state.drafter:
        length_text = f"{state.drafter} · {length_text}"
    by_position = tr("{shares} by position", shares=shares)
    tip = tr("Average number of tokens per pass, and the draft acceptance at each position.")
    return length_text, f"{by_position}\n{tip}"


def throttling_aside(state: PlotState) -> Aside:
    """Return why the GPU is throttled now, or was within the last five minutes."""
    latest, throttled = state.latest, state.throttled
    activity = latest.activity
    if activity is not None and activity.throttled_by:
        return tr("throttled: {reasons}", reasons=tr(", ").join(map(render, activity.throttled_by))), ""
    if throttled is not None and latest.time_s - throttled[0] <= MEAN_S:
        minutes = max(1, round((latest.time_s - throttled[0]) / 60))
        ago = ntr("1 min ago", "{n} min ago", minutes)
        return f"{throttled[1]}, {ago}", tr("The GPU was throttled {ago}: {why}.", ago=ago, why=throttled[1])
    if activity is None:
        return "", ""
    if activity.throttled_by is None:
        return tr("throttling unknown"), render(activity.absent.get("throttled_by", ""))
    return tr("no throttling"), tr("The GPU was not throttled in the last 5 minutes.")


def gpu_memory_aside(state: PlotState) -> Aside:
    """Return the GPU's free memory, and its use."""
    free, tip = _memory_aside(state, "vram_used_mib", "vram_total_mib")
    use = state.latest.readings.get("gpu_use_percent")
    busy = "" if use is None or use.value is None else tr("GPU {percent:.0f} % busy", percent=use.value)
    return "\n".join(filter(None, [free, busy])), tip


def host_memory_aside(state: PlotState) -> Aside:
    """Return the computer's free memory."""
    return _memory_aside(state, "host_memory_used_mib", "host_memory_total_mib")


def _memory_aside(state: PlotState, used: str, total: str) -> Aside:
    """Return free and total memory; `used` and `total` name readings in MiB."""
    used_reading, total_reading = state.latest.readings.get(used), state.latest.readings.get(total)
    if used_reading is None or used_reading.value is None:
        return "", _absence_reason(used_reading)
    used_gib = used_reading.value / _MIB_PER_GIB
    if total_reading is None or total_reading.value is None:
        return tr("{used:,.1f} GiB in use", used=used_gib), _absence_reason(total_reading)
    total_gib = total_reading.value / _MIB_PER_GIB
    return tr("{free:,.1f} of {total:,.1f} free", free=total_gib - used_gib, total=total_gib), ""


def _absence_reason(reading: Reading | None) -> str:
    return "" if reading is None else render(reading.absent or "")
