"""Boundaries to which constants are fitted and on which predictors are scored."""
