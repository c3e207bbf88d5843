"""Backends' own source code: fetched, read, never executed.

Where to look, by the question:

- How do files get here, and why are they believed? `fetching`.
- What form is a rule read in? `language` (`program`, `expressions`; `python_source` and
  `python_cuts` for Python, `leaves` for what a rule asks of the world) and `cpp`.
- How is it read? `language.slicing` cuts it down; `language.paths` enumerates its ways;
  `language.interpret` steps through it; `language.reading` compares the two;
  `language.mechanism` holds the lines that make it matter.
- What does a package keep where? `packages` lists them; `backends` has a module each.
- What does a release say? `extraction`, `tuned`; `record` puts it into the log; `lock` and
  `history` compare releases.
- What is the answer for one setting? `answers.granularity`.
"""
