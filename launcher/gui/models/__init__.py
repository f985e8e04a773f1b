"""The Models page: local files and downloads."""
