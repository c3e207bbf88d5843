"""Blocks and tiles that the rules of a release choose for a question."""
