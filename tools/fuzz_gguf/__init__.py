"""A fuzzer for the reader of GGUF headers: whatever it is given, only a few things may come of it."""
