"""The answers of the command line."""
