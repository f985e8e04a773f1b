"""How far the speed forecasts are off: against published runs, each forecast without its own source and card."""
