"""What runs a module: one record a backend, its adapter, and its environment."""
