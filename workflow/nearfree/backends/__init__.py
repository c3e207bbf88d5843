"""The backends that run modules: one record per backend, its adapter and its environment."""
