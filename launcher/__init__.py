"""MTP Launcher: run llama.cpp's llama-server with MTP speculative decoding, and watch it."""

__version__ = "0.1.0"
