"""A long run of the program at full load, to find resources that grow: `python -m tools.soak [MINUTES]`."""
