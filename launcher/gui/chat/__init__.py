"""The conversation with the model."""
