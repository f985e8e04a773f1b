"""The session of a running server, in this process or another, and the pool of models behind its address."""
