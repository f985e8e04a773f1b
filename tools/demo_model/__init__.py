"""Builds the demo model: a tiny GGUF with a draft head that the real engine runs without a GPU or a network."""
