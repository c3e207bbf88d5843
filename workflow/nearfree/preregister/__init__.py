"""Predictions of a model's boundary from its modules, recorded before the model is measured."""
