"""The Start page: what this computer can run, and the way to the first token."""
