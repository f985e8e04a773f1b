"""Kills the program at random moments, and checks what is left."""
