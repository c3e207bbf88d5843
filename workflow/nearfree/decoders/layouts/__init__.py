"""Layers of each model type: their weights, what they cache and how they attend."""
