"""Accuracy of the speed forecasts: beside published runs, each forecast without its own source and card."""
