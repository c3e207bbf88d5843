"""Backends' own source code: fetched, read, never executed.

Where to look, by the question:

- How do files get here, and why are they believed? `fetching`.
- What form is a rule read in? `language` (`program`, `expressions`; `python_source` and
  `cuts` for Python) and `cpp`.
- How is it read? `language.slicing` cuts it down; `language.paths` enumerates its ways;
  `language.interpret` steps through it, both over `language.statements`; `language.reading`
  compares the two, and holds the lines that make a rule matter.
- What does a package keep where? `packages` lists them; `backends` has a module each.
- What does a release say? `extraction`, `tuned`; `record` puts it into the log; `history`
  compares releases with one another and with the lock.
- What is the answer for one setting? `answers.granularity`.
"""
