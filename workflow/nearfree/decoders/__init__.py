"""Decoders: what a Hugging Face config file says of one, and the modules of its forward."""
