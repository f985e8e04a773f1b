"""Bytes from the net: addresses, metadata and tokens of the Hugging Face hub."""
