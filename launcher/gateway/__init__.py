"""The gateway: one address and key before llama-server, which lets clients' streams outlive a restart of the engine."""
