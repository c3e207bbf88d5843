"""Pure functions of the events and the config, kept as tables."""
