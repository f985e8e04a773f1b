"""The Start page: what this computer can run, and from nothing to the first token."""
