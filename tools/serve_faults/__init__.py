"""Every fault that a server can meet, really met: `python -m tools.serve_faults` prints the table of docs/faults.md."""
