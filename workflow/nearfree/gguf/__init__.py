"""GGUF files: what their headers say of tensors and metadata, trusting nothing."""
