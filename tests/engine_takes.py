"""Takes of a made-up engine's forwards on a made-up machine, and rules of its release on record."""

from collections.abc import Iterable
from typing import Any

from conftest import write_payloads
from derive.tables.logs import make_visits
from nearfree.core.plan import MeasurePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.log.events import (
    Branch,
    EngineLoaded,
    EngineMatrix,
    EngineShape,
    Payload,
    Quote,
    RuleExtracted,
    SharesMeasured,
    SourceFetched,
    SourceMember,
)
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import take_name
from nearfree.sources.record import extract_plan, extract_take

PACKAGE, RELEASE, STREAM = "llama-cpp", "9.9.9", "an_engine"
GRID = (1, 2, 3, 4, 5, 8, 9, 16)
SETTING = Setting(
    module="engine", backend="llama_cpp", dtype="float32", model="tiny", release=RELEASE,
    model_digest="0123456789ab", file_type="q8_0", batch=1, context=64, threads=1, repack=True,
)  # fmt: skip
FILE = "ggml/src/kernels.c"
MATRICES = (
    EngineMatrix(part="ffn_up", type="q8_0", rows=256, columns=64, count=3),
    EngineMatrix(part="attn_q", type="q8_0", rows=64, columns=64, count=3),
    EngineMatrix(part="output", type="q4_1", rows=512, columns=64, count=1),
)
_RULES: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "mechanism_order": (((), "'sgemm, vector'"),),
    "mechanism_feature_WIDE": (((), "'avx512f avx512vl; avx512f; 1'"),),
    "sgemm": (
        (("weight == 'Q8_0'", "rows >= 2", "avx512f"), "('tinyBLAS_Q0_AVX', 1)"),
        (("not (weight == 'Q8_0' and rows >= 2 and avx512f)",), "False"),
    ),
    "block_tile": (
        (("rows >= 4",), "(4, rows - rows % 4)"),
        (("rows < 4",), "(rows, rows)"),
    ),
    "vector": (((), "('Q8_0', 1)"),),
    "vector_block": (((), "16"),),
}


def rule(name: str) -> RuleExtracted:
    """Return a rule with two lines per branch; the third rule starts at line 30."""
    first = 10 * (1 + list(_RULES).index(name))
    return RuleExtracted(
        package=PACKAGE,
        version=RELEASE,
        rule=name,
        symbol=name,
        inputs=("weight", "rows", "avx512f"),
        branches=tuple(
            Branch(
                when=when,
                value=value,
                quotes=(Quote(file=FILE, lines=(first + 2 * i, first + 1 + 2 * i), text="x"),),
            )
            for i, (when, value) in enumerate(_RULES[name])
        ),
        meaning="0" * 64,
        points=1,
    )


def write_rules(layout: Layout, *, without: Iterable[str] = ()) -> Seal:
    """Seal the rules of the release: blocks of four rows of Q8_0, and all else row by row."""
    source = SourceFetched(
        package=PACKAGE,
        version=RELEASE,
        artefact="x",
        artefact_sha256="0" * 64,
        verified="artefact",
        members=(SourceMember(path=FILE, sha256="1" * 64, size=1),),
    )
    rules = [rule(name) for name in _RULES if name not in without]
    plan = extract_plan(PACKAGE, RELEASE)
    return write_payloads(layout, extract_take(PACKAGE, RELEASE), plan, source, *rules)


def loaded(**changes: Any) -> EngineLoaded:
    """Return what the engine had loaded."""
    fields: dict[str, Any] = {
        "engine": "llama_cpp",
        "release": RELEASE,
        "package": "an-engine",
        "library_sha256": {"libggml-cpu-wide.so": "2" * 64, "libllama.so": "3" * 64},
        "header_sha256": {"llama.h": "4" * 64},
        "system_info": "CPU : WIDE = 1 | FMA = 0 | LLAMAFILE = 1 | REPACK = 1 |",
        "model": "tiny",
        "weights_sha256": "0123456789ab" + "0" * 52,
        "weights_bytes": 98_400_000,
        "file_type": "q8_0",
        "repack": True,
        "matrices": MATRICES,
        "shape": EngineShape(layers=3, heads=4, kv_heads=2, head_dim=16),
    }
    return EngineLoaded(**fields | changes)


def times(setting: Setting) -> dict[int, float]:
    """Return T(N) in microseconds: a step at each block of four rows."""
    blocks = {n: -(-setting.batch * n // 4) for n in GRID}
    return {n: 900.0 + 100 * many + 10 * n for n, many in blocks.items()}


def shares(setting: Setting) -> list[SharesMeasured]:
    """Return watched forwards at two N."""
    return [
        SharesMeasured(
            setting=setting,
            n=n,
            round=0,
            part_us={"Dense FFN": 60.0 + n, "LM head": 40.0},
            dirty=False,
            timer="cpu",
        )
        for n in (1, 2)
    ]


def write_engine(
    layout: Layout,
    *settings: Setting,
    scope: str = "cpu",
    take: int = 1,
    stream: str = STREAM,
    ran: Iterable[Payload] | None = None,
) -> Seal:
    """Seal a take of some settings, by default the one."""
    swept = settings or (SETTING,)
    plan = MeasurePlan(
        sweeps=tuple(Sweep(setting=setting, positions=GRID) for setting in swept),
        protocol=Interleaved(rounds=4),
        environment="cpu",
    )
    kinds = {
        (setting.release, setting.model, setting.file_type, setting.repack) for setting in swept
    }
    names = ("release", "model", "file_type", "repack")
    given = [loaded(**dict(zip(names, kind, strict=True))) for kind in sorted(kinds)]
    payloads = [
        *(given if ran is None else ran),
        *(visit for setting in swept for visit in make_visits(setting, times(setting), rounds=4)),
        *(share for setting in swept for share in shares(setting)),
    ]
    return write_payloads(layout, take_name(scope, stream, take, plan), plan, *payloads)
