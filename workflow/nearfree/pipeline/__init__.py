"""The workflow's rules in Python: scopes, receipts and targets; and jobs on a cluster."""
