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
        "context (the shorter, the smaller attention's share of T(N))",
    ),
    "MoE FFN": (
        "backend and its version (M_moe and tau)",
        "tile (a tuned file of your own sets BLOCK_SIZE_M)",
        "top-k (fewer experts a token)",
        "routing (balanced wakes experts with each position; skewed fills the blocks of k alone)",
        "batch (b N tokens share the padding)",
        "hardware",
    ),
}
"""By the role of the module; every other module is a dense product."""


def knobs(limiting_module: str) -> tuple[str, ...]:
    """Return what can be turned where a module limits, the strongest first."""
    return KNOBS.get(limiting_module, _DENSE)
