"""Tests of `decoders`: models as their config.json, checkpoint or GGUF file describes them."""
