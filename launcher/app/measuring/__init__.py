"""Measurements on a server: benchmarks, sweeps, quality, tunes, and the proof of a machine."""
