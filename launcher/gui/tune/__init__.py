"""The Tune page: which settings win on this machine, measured."""
