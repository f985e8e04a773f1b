"""Models of true geometry without content: GGUF files that take kilobytes on disk, for an engine's dry run."""
