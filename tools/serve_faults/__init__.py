"""Every fault of a server, provoked for real: `python -m tools.serve_faults` prints the table of docs/faults.md."""
