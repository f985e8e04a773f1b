"""Engine builds: finding, installing, probing and testing llama-server binaries."""
