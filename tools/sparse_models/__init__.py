"""Model files with the shapes of real models but without data: they take kilobytes on disk, for an engine's dry run."""
