"""The jobs that the workflow lists for the tiny config."""

EVERYTHING = {
    "probe": 1,
    "measure": 1,
    "publish": 1,
    "project": 2,
    "boundaries": 2,
    "predictions": 2,
    "validation": 2,
    "outlook": 1,
    "schedules": 1,
    "kernels": 1,
    "engine_steps": 1,
    "tuning": 1,
    "claims": 2,
    "figures": 2,
    "report": 1,
    "ledger": 1,
}
LEDGER = "results/state/ledger.json"
"""The target that needs every receipt and no table."""
AFTER_PROJECT = {
    "project": 1,
    "boundaries": 1,
    "predictions": 1,
    "validation": 1,
    "engine_steps": 1,
    "tuning": 1,
    "claims": 1,
    "figures": 1,
    "report": 1,
}

AFTER_RULES = {
    "predictions": 2,
    "validation": 2,
    "outlook": 1,
    "schedules": 1,
    "engine_steps": 1,
    "claims": 2,
    "figures": 2,
    "report": 1,
    "ledger": 1,
}
"""What follows from rules, constants or a formula, in the scopes of this machine and the paper."""
