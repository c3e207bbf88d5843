"""Audit: trace any number to the events that it was made from, and recompute it from them."""
