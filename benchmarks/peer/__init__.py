"""AIConfigurator's own SDK and nearfree, asked for the same shapes that neither of them knows."""
