"""Whole logs of released code, with all that it made from them: later code makes the same."""
