"""Fetch the few needed files of a release, and verify them before they are used."""
