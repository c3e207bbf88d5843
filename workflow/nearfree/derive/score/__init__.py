"""Scores of the predictors."""
