"""The command line: one module per verb, each with text and --json output."""
