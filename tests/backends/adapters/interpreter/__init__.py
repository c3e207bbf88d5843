"""Released MoE kernels under Triton's interpreter: a process of their own, on a CPU.

`pinned` serves the test and names what may run at all; the other modules are the process that
runs it, which the test starts as `python -m interpreter.run`.
"""
