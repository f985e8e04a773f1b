"""The chat with the model."""
