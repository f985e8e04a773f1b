"""Durations as text."""

from launcher.gui.translation import tr


def format_duration(seconds: float) -> str:
    """Return a duration as text: 45 s, 2 min, 9 min 12 s, 2 h 5 min."""
    total_seconds = max(round(seconds), 0)
    minutes, rest = divmod(total_seconds, 60)
    if not minutes:
        return tr("{seconds} s", seconds=total_seconds)
    if minutes >= 60:
        return tr("{hours} h {minutes} min", hours=minutes // 60, minutes=minutes % 60)
    if not rest:
        return tr("{minutes} min", minutes=minutes)
    return tr("{minutes} min {seconds} s", minutes=minutes, seconds=rest)
