"""Every fault that a download can meet, really met: `python -m tools.fault_matrix` prints docs/downloads.md's table."""
