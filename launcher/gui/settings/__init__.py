"""The Settings page, made from the declared settings."""
