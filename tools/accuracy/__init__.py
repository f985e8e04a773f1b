"""Accuracy of the memory formula: beside published measurements, published predictions, and a real engine."""
