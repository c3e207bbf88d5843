"""Backends' own source code: fetched, read, never executed.

Where to look, by the question:

- How do files get here, and why are they believed? `index`, `wheel`, `sdist`, `members`, `fetch`,
  `cache`.
- What form is a rule read in? `program` and `expressions`; `python_source`, `python_cuts` and
  `records` bring Python into it, `cpp_*` (by way of `cpp`) C++; `leaves` names what it asks of the
  world.
- How is it read? `slicing` cuts it down; `paths` (with `walk`, `symbols`, `decisions`, `bounds`)
  enumerates its ways; `interpret` steps through it; `reading` compares the two; `mechanism` finds
  the lines that make it matter.
- What does a package keep where? `packages` lists them: `vllm` and `sglang` (with `fused_moe`),
  `flash_attn`, `flash_attn_3`, `flash_attn_4`, `flashinfer`, each with its own files beside it.
- What does a release say? `extraction`, `tuned`; `record` puts it into the log; `lock` and
  `history` compare releases.
- What is the answer for one setting? `granularity`, over `moe`, `attention`, `lookup`, `nearest`,
  `rule` and `intervals`.
"""
