"""The paper's laws, evaluated on frames."""
