"""A fuzzer for the reader of GGUF headers, which must return a header or raise one of two errors."""
