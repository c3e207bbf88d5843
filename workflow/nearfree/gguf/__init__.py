"""GGUF files: their headers' metadata and tensors, read without trust."""
