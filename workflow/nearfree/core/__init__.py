"""What is spoken of: settings, modules, protocols, boundaries."""
