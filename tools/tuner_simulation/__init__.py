"""Simulates the tuner on machines whose best settings are known: `python -m tools.tuner_simulation --tunes 1000`."""
