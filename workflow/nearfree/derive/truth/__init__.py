"""Boundaries that constants are fitted to and predictors scored on."""
