"""Updates of this program: check for a newer version, download it, and install it the way this one was installed."""
