"""What can be turned where a module limits (paper, app., "System and Backend Co-Design")."""

_DENSE = (
    "batch (the boundary falls as 1 / b)",
    "hardware (it grows with rho = phi / beta)",
    "element type (through rho s)",
)
KNOBS = {
    "attention": (
        "backend and its version (another query tile)",
        "tile (rows of it that a position takes: heads / kv_heads where heads are packed)",
        "context (a longer one, a larger share of T(N))",
    ),
    "MoE FFN": (
        "backend and its version (M_moe and tau)",
        "tile (a tuned file of your own sets BLOCK_SIZE_M)",
        "top-k (fewer experts a token)",
        "routing (the more even, the more padding is left)",
        "batch (b N tokens share the padding)",
        "hardware",
    ),
}
"""By the role of the module; every other module is a dense product."""


def knobs(limiting_module: str) -> tuple[str, ...]:
    """Return what can be turned where a module limits, the strongest first."""
    return KNOBS.get(limiting_module, _DENSE)
