"""Kills the program at random moments while it downloads, again and again: `python -m tools.kill_downloads`."""
