"""The Settings page, generated from the declared app settings."""
