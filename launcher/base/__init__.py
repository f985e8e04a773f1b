"""Errors, paths, files, processes and HTTP. Imported by every other room; imports none of them."""
