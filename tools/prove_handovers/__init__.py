"""Proof that clients do not notice handovers: real SDKs stream while the engine is restarted with other settings."""
