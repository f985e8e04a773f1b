"""Live numbers: one clock, bounded series, unknown absent with a reason."""
