"""Conversations that are kept: one SQLite file, its export as text, and a thread that writes while replies stream."""
