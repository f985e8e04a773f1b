"""Which settings win on this machine, measured: workloads, statistics, the search, the verdict, the history."""
