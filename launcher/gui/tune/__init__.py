"""The Tune page: measures which settings are fastest on this machine."""
