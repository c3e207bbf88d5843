"""GGUF files read as a config.json and a checkpoint's tensors."""
