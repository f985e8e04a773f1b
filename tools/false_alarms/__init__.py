"""Counts false alarms of the health detectors while the demo is used: `python -m tools.false_alarms [--minutes N]`."""
