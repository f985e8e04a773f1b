"""Proves exports by running them with the tools that they are written for."""
