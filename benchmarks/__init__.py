"""Speed of the program itself, against limits: `python -m benchmarks` prints docs/performance.md's table."""
