"""Boundaries as engines take them: draft lengths by batch size, in the form of each option.

- Which draft length at which batch size? `schedule` from boundaries, `expected` from latency and
  acceptance.
- How does an engine take it? `vllm`, `sglang`, `llama_cpp`: an `option` each. `engines` names
  those that take draft lengths.
- Why is an engine believed to accept it? `parsers` names the lines that read the option.
"""
