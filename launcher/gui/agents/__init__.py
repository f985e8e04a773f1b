"""The Agents page: a coding agent on the user's own model, and whether the server suits it."""
