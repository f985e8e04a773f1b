"""The Logs page: the engines' output and the diagnosis of errors."""
