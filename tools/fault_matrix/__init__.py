"""Every fault of a download, provoked for real: `python -m tools.fault_matrix` prints docs/downloads.md's table."""
