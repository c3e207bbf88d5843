"""The predictors behind one door, and what they say of settings and models."""
