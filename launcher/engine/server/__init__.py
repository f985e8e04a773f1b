"""A running server: process, supervision, endpoint, registry and logs."""
