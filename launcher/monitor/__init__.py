"""Monitoring of a running server: samples of machine and engine, the speed of replies, and health detectors."""
