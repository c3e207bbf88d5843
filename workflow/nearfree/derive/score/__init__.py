"""How well the predictors do."""
