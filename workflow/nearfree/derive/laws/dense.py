"""Dense FFN or one matrix product: how many positions fit before compute catches up with memory.

Only weights count as traffic, so the number of matrices cancels: one product (`gemm`), an FFN of
two, and a gated one of three (6 and 3 for the paper's 4 and 2) have the same N_idle.
"""

from typing import TypeVar

import polars as pl

Value = TypeVar("Value", float, pl.Expr)


def arithmetic_intensity(batch: Value, n: Value, element_bytes: Value) -> Value:
    """Return AI(N) = 2 b N / s in FLOP per byte (paper, sec. 3.2).

    C(N) = 4 b N d_model d_ff and B(N) = 2 d_model d_ff s; `batch` is b, `n` is N,
    `element_bytes` is s; numbers or columns alike.
    """
    return 2 * batch * n / element_bytes


def idle_compute(balance: Value, batch: Value, element_bytes: Value) -> Value:
    """Return N_idle = rho s / (2 b), where AI(N) meets the balance point (paper, sec. 3.2).

    `balance` is rho in FLOP per byte; numbers or columns alike.
    """
    return balance * element_bytes / (2 * batch)


def principle(balance: Value, batch: Value, element_bytes: Value) -> Value:
    """Return the paper's law for a Dense FFN by itself: its idle-compute term (paper, sec. 4.1).

    The law's other term, M_attn, belongs to a model's attention and enters only there.
    """
    return idle_compute(balance, batch, element_bytes)
