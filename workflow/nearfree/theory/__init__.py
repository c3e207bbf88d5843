"""The predictors, side by side, and how well they do."""
