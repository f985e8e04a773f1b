"""Exports a server as text for shells, containers, systemd, clients and proxies. Pure functions: nothing is read or
run.
"""
