"""Accuracy of the speed forecasts, compared with published runs; each forecast leaves out its own source and card."""
