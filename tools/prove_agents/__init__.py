"""Proof that coding agents work: real ones are run by `mtp-launcher code`, and treated badly."""
