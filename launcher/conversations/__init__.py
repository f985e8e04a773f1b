"""Stored conversations: a SQLite database, export as text, and a thread that writes while replies stream."""
