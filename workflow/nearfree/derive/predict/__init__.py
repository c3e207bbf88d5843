"""The predictors, their common interface, and their predictions of settings and models."""
