"""What is found about a running server's health, in a line."""

from collections.abc import Mapping
from typing import Any


def health_line(found: Mapping[str, Any], *, cleared: bool = False) -> str:
    """Return a finding as it is told on a terminal: how much it matters, what it is, what to do about it."""
    lead = "Over" if cleared else "Note" if found.get("level") == "information" else "Warning"
    action = found.get("action")
    label = action.get("label") if isinstance(action, Mapping) and not cleared else None
    return f"{lead}: {found.get('sentence', '')}" + (f" To do: {label}." if label else "")
