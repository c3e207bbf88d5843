"""Tests of `decoders/gguf_files`."""
