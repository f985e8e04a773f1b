"""The Logs page: what the engines write, and what is wrong with it."""
