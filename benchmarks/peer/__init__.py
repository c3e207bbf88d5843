"""AIConfigurator's own SDK and nearfree, compared on shapes that are unknown to both."""
