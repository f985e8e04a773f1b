"""Models: GGUF headers, the memory estimate, the catalogue, plans, downloads and the library of local files."""
