"""Answers of a release's rules: the granularity of one setting over a range of sizes."""
