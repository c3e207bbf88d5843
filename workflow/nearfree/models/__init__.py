"""The forward of a decoder in torch, over a KV cache."""
