"""Schedules: draft lengths by batch size, written as options of engines.

- The draft length of each batch size: `draft_lengths` from boundaries, `expected` from latency and
  acceptance.
- The option of each engine: `engines` writes its text and names the source lines that read it.
"""
