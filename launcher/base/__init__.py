"""Errors, messages, paths, files, processes and HTTP. Every other room imports this one; it imports none of them."""
