"""Engine builds and servers: finding, installing, configuring, starting, supervising and diagnosing a llama-server."""
