"""One llama-server: found, probed, given its arguments, supervised, talked to."""
