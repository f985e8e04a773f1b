"""Kills the program at random moments, and looks at what is left."""
