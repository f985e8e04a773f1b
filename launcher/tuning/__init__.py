"""Measuring and tuning: workloads, statistics, the search for the best settings, verdicts, and the history."""
