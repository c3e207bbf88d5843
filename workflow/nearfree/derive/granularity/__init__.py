"""Blocks and tiles of questions, by the rules of their release."""
