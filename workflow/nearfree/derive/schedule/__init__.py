"""Boundaries as engines take them: draft lengths by batch size, in the form of each option.

- Which draft length at which batch size? `draft_lengths` from boundaries, `expected` from
  latency and acceptance.
- How does an engine take it? `engines`: the text of its option, and the lines that read it.
"""
