"""Ordinary use of the demo, watched for what health says of it: `python -m tools.false_alarms [--minutes N]`."""
