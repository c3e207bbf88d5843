"""The basic notions: settings, modules, plans, protocols, drafts and boundaries."""
