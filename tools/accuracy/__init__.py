"""Accuracy of the memory formula, compared with published measurements and predictions, and with a real engine."""
