"""How right the memory formula is: against published measurements, published predictions, and a real engine."""
