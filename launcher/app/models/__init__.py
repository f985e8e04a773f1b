"""The user's models: the library, downloads, and recipes."""
