"""The plots and their read-outs."""
