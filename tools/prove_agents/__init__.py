"""Proof that coding agents work: real ones are run by `mtp-launcher code`, also with server errors."""
