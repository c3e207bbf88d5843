"""Backends' own source code: fetched, read, never executed.

- Fetching and verification of files: `fetching`.
- The normal form of a rule: `language` (`program`, `expressions`; `python_source` and `cuts` for
  Python) and `cpp`.
- Reading a rule: `language.slicing` cuts it down; `language.paths` enumerates its paths;
  `language.interpret` interprets it, both over `language.statements`; `language.reading` compares
  the two, and has the mechanisms: the lines that link a rule to a kernel.
- What each package keeps where: `packages` lists them; `backends` has one module each.
- A release's rules and tuned files: `extraction`, `tuned`; `record` writes them into the log;
  `history` compares releases with one another and with the lock.
- The answer for one setting: `answers.granularity`.
"""
