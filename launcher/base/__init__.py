"""Errors, paths, files, processes and HTTP: what every other room uses and nothing of ours."""
