"""What a model file holds: the GGUF header, its geometry and its MTP head."""
