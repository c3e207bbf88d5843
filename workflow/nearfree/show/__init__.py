"""Tables as people see them: text, figures, and the report's page."""
