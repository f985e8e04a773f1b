"""Coding agents: how each is pointed at a server, and whether a server suits them."""
