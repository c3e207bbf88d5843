"""The predictors by name."""

PREDICTORS = ("idle_compute", "principle", "principle_resolved", "work_model")
RECORDED = ("principle_counted", "modules_minimum", "modules_sum")
"""What is on record of models before they are measured."""
