"""Write the golden logs of a version: `python tests/golden/make.py VERSION [LOG ...]`.

Each version of the package that changes events or tables adds its own logs here; those of earlier
versions are never written again. A golden log is `VERSION/LOG`, with `config` and with `root`, a
results root: `measured` holds this machine's takes and a stand-in for a GPU, `simulated` a GPU of
curves, `formats` weights and caches in other formats, measured and imported, `kernels` what curves
say of kernels on two GPUs, `layers` models whose layers differ, `steps` one that an engine serves,
`engine` forwards of a real engine on this machine, `tuned` one that was tuned, `batched` one that
was tuned with two prompts at once, `watched` one that was tuned on CPUs that a host may move,
`precise` one that drafts with another cache than its own.
Events, ledgers and tables lie there as the workflow made them; figures' data, report's numbers and
answers of commands lie in `derived.json.gz`.

`python tests/golden/make.py --derive VERSION` keeps a version's events and writes what is derived
from them by the code at hand: for a change of tables that is meant. Read first what
`tests/golden/test_golden_log.py` says of it, and put it into the commit's message.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from itertools import product
from pathlib import Path

from conftest import make_plan, make_setting, write_payloads
from derive.tables.logs import make_visits, write_probe
from measure.machines import FakeKernel, take
from measure.test_nsight import GEMM, report
from nearfree.config.files import Config
from nearfree.core.plan import MeasurePlan, ProfilePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.work import ExecutedWork
from nearfree.engines.files import cached_weights
from nearfree.errors import HardwareError
from nearfree.log.events import DeviceState, Fingerprint, LaunchFloor, WorkCounted
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.measure.nsight import payloads
from public.tables import member, parquet, put_release, rows
from sources.fetching.indexserver import serving

from golden.answers import answers
from golden.compare import derived, write_derived
from golden.remake import LOG, remake
from workflow import NO_NETWORK, ROOT, Project, make_project

HERE = Path(__file__).parent
CURVE_FILES = "simulated/curves"
RECORDED = {
    "measured": (
        *("public/constants", "public/constants_own", "sources/vllm_0_33_0"),
        *("sources/flash_attn_2_8_3", "sources/flashinfer_python_0_6_13"),
        "sources/flashinfer_python_0_7_2_post1",
    ),
    "simulated": ("public/constants", "sources/vllm_0_33_0", "sources/flash_attn_2_8_3"),
    "formats": ("public/constants", "sources/flash_attn_2_8_3"),
    "kernels": ("public/constants", "sources/flash_attn_2_8_3"),
    "layers": ("public/constants", "sources/flash_attn_2_8_3"),
    "steps": (
        *("public/constants", "public/engine_step", "sources/flash_attn_2_8_3"),
        *("sources/vllm_graphs_0_33_0", "sources/binaries_vllm_0_20_2"),
        "sources/compiled_sglang_0_5_9",
    ),
    "engine": ("public/constants", "sources/flash_attn_2_8_3", "sources/llama_cpp_3_22_1"),
    "precise": ("public/constants", "sources/flash_attn_2_8_3"),
}
"""The takes of this project's own log that are copied: rules and constants."""
CURVES = """platform,module,backend,backend_version,dtype,batch,context,d_model,d_ff,gated,experts,\
top_k,routing,heads,kv_heads,head_dim,kernel,n,latency_us
h100,moe_ffn,sglang,0.5.14,bfloat16,1,,4096,1024,true,64,8,balanced,,,,,1,240
h100,moe_ffn,sglang,0.5.14,bfloat16,1,,4096,1024,true,64,8,balanced,,,,,16,620
h100,moe_ffn,sglang,0.5.14,bfloat16,1,,4096,1024,true,64,8,balanced,,,,,256,700
"""
STORED_CURVES = """platform,module,backend,backend_version,dtype,weights,kv_dtype,batch,context,\
d_model,d_ff,gated,experts,top_k,routing,heads,kv_heads,head_dim,n,latency_us
h100,dense_ffn,vllm,0.33.0,float8,,,1,,4096,12288,true,,,,,,,1,62
h100,dense_ffn,vllm,0.33.0,float8,,,1,,4096,12288,true,,,,,,,64,66
h100,dense_ffn,vllm,0.33.0,float8,,,1,,4096,12288,true,,,,,,,512,140
h100,dense_ffn,vllm,0.33.0,bfloat16,int4,,1,,4096,12288,true,,,,,,,1,36
h100,dense_ffn,vllm,0.33.0,bfloat16,int4,,1,,4096,12288,true,,,,,,,64,52
h100,dense_ffn,vllm,0.33.0,bfloat16,int4,,1,,4096,12288,true,,,,,,,512,260
h100,attention,flashinfer_fa2,0.6.13,bfloat16,,float8,8,4096,,,,,,,32,8,128,1,24
h100,attention,flashinfer_fa2,0.6.13,bfloat16,,float8,8,4096,,,,,,,32,8,128,16,26
h100,attention,flashinfer_fa2,0.6.13,bfloat16,,float8,8,4096,,,,,,,32,8,128,64,70
"""
GRID = (1, 8, 64, 256, 512)
_SWEPT = "{name: interleaved, rounds: 4, warmup: 0, forwards: 1}"
_PAIRED = "{name: paired, rounds: 8, look_every: 4, half_width: 0.1, warmup: 0, seconds_max: 1}"
PROMPTS = """{"kind": "copying", "prompt": "Copy this text exactly: the mill stands by the river"}
{"kind": "copying", "prompt": "Repeat word by word: the river runs past the mill, and by"}
{"kind": "text", "prompt": "What does a mill do?"}
{"kind": "text", "prompt": "Why is a river never straight?"}
"""


def make_measured(folder: Path) -> tuple[Project, Path]:
    """Return a project with takes of this machine: interrupted, failed, retracted and others."""
    project = make_project(folder, "model", "golden")
    _copy_recorded(project, "measured", "results")
    (folder / "own.csv").write_text(CURVES)
    with _index(folder):
        project.nearfree("import", "curves", "own.csv")
        project.snakemake()
    layout = Layout(folder / "results")
    _kill(project, "moe", take=2)
    project.nearfree("measure", "cpu", "moe", "--take", "2")
    done = project.nearfree("measure", "cpu", "dense_ffn", "--take", "2")
    project.nearfree("log", "retract", done.partition(":")[0], "--reason", "a backup ran meanwhile")
    _kill(project, "attention", take=2)
    _fail(layout)
    _write_gpu(layout)
    project.snakemake()
    return project, folder / "results"


def make_simulated(folder: Path) -> tuple[Project, Path]:
    """Return a project with a simulated GPU that ran every module and a model."""
    project, root = make_project(folder, "families"), "simulated/results"
    _copy_recorded(project, "simulated", root)
    project.nearfree("predict", "--curves", CURVE_FILES, "--results", root)
    project.snakemake("--config", f"results={root}")
    return project, folder / root


def make_formats(folder: Path) -> tuple[Project, Path]:
    """Return a project with weights and a cache in other formats, measured and imported."""
    project = make_project(folder, "formats")
    _copy_recorded(project, "formats", "results")
    (folder / "stored.csv").write_text(STORED_CURVES)
    project.nearfree("import", "curves", "stored.csv")
    project.snakemake()
    return project, folder / "results"


def make_kernels(folder: Path) -> tuple[Project, Path]:
    """Return a project that keeps what curves of two GPUs say of a kernel."""
    project = make_project(folder, "formats")
    _copy_recorded(project, "kernels", "results")
    (folder / "products.csv").write_text("\n".join(_products()))
    project.nearfree("import", "curves", "products.csv")
    (stream,) = (folder / "results/events/imported").iterdir()
    project.nearfree("calibrate", "--kernels", "--stream", stream.name, "--offline")
    project.snakemake()
    return project, folder / "results"


def _products() -> Iterator[str]:
    """Yield curves of products on two GPUs, by a roofline of our own making."""
    yield STORED_CURVES.partition("\n")[0]
    for platform, bytes_us in (("h100", 2.9e6), ("h200", 4.1e6)):
        for wide, narrow in product((4096, 5120, 7168, 8192), (12288, 16384, 28672)):
            for n in GRID:
                moved, flop_us = 2 * wide * narrow / bytes_us, 2 * n * wide * narrow / 7e8
                us = 4 + (moved**3 + flop_us**3) ** (1 / 3) + n / 64
                product_of = f"{platform},gemm,vllm,0.24.0,bfloat16,,,1,,{wide},{narrow}"
                yield f"{product_of},,,,,,,,{n},{us:.3f}"


def make_layers(folder: Path) -> tuple[Project, Path]:
    """Return a project with models whose layers differ, and curves of latent attention."""
    project = make_project(folder, "layers")
    _copy_recorded(project, "layers", "results")
    (folder / "latents.csv").write_text("\n".join(_latents()))
    project.nearfree("import", "curves", "latents.csv")
    (stream,) = (folder / "results/events/imported").iterdir()
    project.nearfree("calibrate", "--kernels", "--stream", stream.name, "--offline")
    project.snakemake()
    return project, folder / "results"


def make_steps(folder: Path) -> tuple[Project, Path]:
    """Return a project of a served model, with what binaries and compilers said of kernels."""
    project = make_project(folder, "steps")
    _copy_recorded(project, "steps", "results")
    project.snakemake()
    return project, folder / "results"


def make_engine(folder: Path) -> tuple[Project, Path]:
    """Return a project in which a real engine ran: its files come out of the user's cache."""
    project = _engine_project(folder, "engine")
    with _users_machine():
        project.nearfree("fetch")
        project.snakemake()
    return project, folder / "results"


def make_tuned(folder: Path) -> tuple[Project, Path]:
    """Return a project in which a real engine was tuned on prompts of two kinds, also sampled."""
    return _tuned(folder, (), ("--temperature", "0.8"))


def make_batched(folder: Path) -> tuple[Project, Path]:
    """Return a project in which a real engine was tuned with two prompts at once."""
    return _tuned(folder, ("--batch", "2"))


def make_watched(folder: Path) -> tuple[Project, Path]:
    """Return a project in which a real engine was tuned on two CPUs of a virtual machine."""
    return _tuned(folder, ("--threads", "2"))


def make_precise(folder: Path) -> tuple[Project, Path]:
    """Return a project in which OpenVINO, whose environment is made, was tuned."""
    with _users_machine():
        project = _engine_project(folder, "precise")
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder / name)
        project.nearfree("environment", "make", "openvino")
        project.nearfree("fetch")
        weights = Config(folder / "config").weights_of(Config(folder / "config").studies["smollm2"])
        _tune(project, "openvino", "--model", str(cached_weights(weights.sha256)))
        project.snakemake()
    return project, folder / "results"


def _tuned(folder: Path, *ways: tuple[str, ...]) -> tuple[Project, Path]:
    """Return a project in which a real engine was tuned in some ways."""
    project = _engine_project(folder, "engine")
    with _users_machine():
        project.nearfree("fetch")
        for way in ways:
            _tune(project, "llama_cpp", *way)
        project.snakemake()
    return project, folder / "results"


def _engine_project(folder: Path, recorded: str) -> Project:
    project = make_project(folder, "engine")
    studies = folder / "config/studies.yaml"
    studies.write_text(studies.read_text().replace(_SWEPT, _PAIRED))
    _copy_recorded(project, recorded, "results")
    (folder / "prompts.jsonl").write_text(PROMPTS)
    return project


def _tune(project: Project, engine: str, *words: str) -> None:
    project.nearfree(
        *("tune", engine, "--prompts", "prompts.jsonl", "--results", "results"),
        *("--threads", "1", "--repeats", "2", *words),
    )


@contextmanager
def _users_machine() -> Iterator[None]:
    """Take an engine's files out of the user's cache, and packages from the user's index."""
    hidden = {name: os.environ.pop(name) for name in NO_NETWORK if name in os.environ}
    try:
        yield
    finally:
        os.environ |= hidden


def _latents() -> Iterator[str]:
    """Yield curves of latent attention without a cache, by a roofline of our own making."""
    sizes = ",latent,rope_dim,nope_dim,value_dim,api,n,"
    yield STORED_CURVES.partition("\n")[0].replace(",n,", sizes)
    for heads, batch in product((8, 16, 32, 64, 128), (1, 4)):
        for n in (1, 16, 128, 512, 2048):
            us = 6 + batch * heads * n * max(n, 128) * 640 / 6e8 + batch * n * heads / 5e3
            of = f"h100,mla,vllm,0.24.0,bfloat16,,,{batch},0,,,,,,,{heads},,"
            yield f"{of},512,64,128,128,naive,{n},{us:.3f}"


def _copy_recorded(project: Project, name: str, root: str) -> None:
    for folder in RECORDED[name]:
        shutil.copytree(ROOT / "results" / "events" / folder, project / f"{root}/events/{folder}")


@contextmanager
def _index(folder: Path) -> Iterator[None]:
    """Serve public tables of our own making, of two versions on two GPUs, as a package index."""
    tables = {}
    for system, scale in (("h100_sxm", 1.0), ("a100_sxm", 1.6)):
        for version, slower in (("0.20.2", 1.2), ("0.24.0", 1.0)):
            for table, base in (
                *(("gemm_perf", 0.03), ("moe_perf", 0.6)),
                *(("context_attention_perf", 0.02), ("generation_attention_perf", 0.01)),
            ):
                points = [
                    (n, base * scale * max(1.0, n / (64 * slower)))
                    for n in (GRID if table != "generation_attention_perf" else (127, 1023, 8191))
                ]
                path = member(table, system).replace("0.24.0", version)
                device = f"NVIDIA {system[:4].upper()}"
                tables[path] = parquet(rows(table, *points, version=version, device=device))
    with serving() as server:
        put_release(server, tables, systems=("h100_sxm", "a100_sxm"))
        os.environ |= {
            "PIP_INDEX_URL": f"{server.url}/simple",
            "NEARFREE_CACHE": str(folder / "cache"),
        }
        yield


def _kill(project: Project, study: str, take: int) -> None:
    """Kill a measurement after its first complete round, as a cluster would."""
    words = ("-m", "nearfree", "measure", "cpu", study, "--take", str(take))
    pattern = f"results/events/cpu/{study}/{take}-*.1.jsonl"
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": str(project / "workflow")},
    ) as process:
        while process.poll() is None:
            lines = [path.read_bytes().count(b"\n") for path in project.folder.glob(pattern)]
            if lines and lines[0] > 60:
                process.kill()
            time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL, f"{study} ended before it was killed"


def _fail(layout: Layout) -> None:
    """Write a take whose first attempt ended in an error."""
    plan = make_plan(backend="torch", d_model=256, d_ff=512, rounds=4)
    with suppress(HardwareError):
        take(layout, plan, FakeKernel(fails_at=30))
    take(layout, plan, FakeKernel())


def _write_gpu(layout: Layout) -> None:
    """Write the events of a GPU's takes: a stand-in, since there was no GPU."""
    setting = make_setting(backend="torch", dtype="bfloat16", d_model=4096, d_ff=9216)
    fingerprint = Fingerprint(
        kind="cuda", model="NVIDIA H20", features=("sm_90",), cores=78, caches={"l2": 60 << 20}
    )
    write_probe(layout, "h20", fingerprint=fingerprint, peak=500_000.0, bandwidth=3600.0)
    plan = MeasurePlan(
        sweeps=(Sweep(setting=setting, positions=GRID),),
        protocol=Interleaved(rounds=4),
        environment="cpu",
    )
    weights = 3 * 4096 * 9216
    counted = [
        WorkCounted(
            setting=setting,
            n=n,
            work=ExecutedWork(
                flop_logical=2 * weights * n,
                flop_executed=2 * weights * max(n, 64),
                bytes_compulsory=2 * weights,
                tiles=72,
                waves=1.0,
                basis="a stand-in",
            ),
            kernels=(GEMM,),
        )
        for n in GRID
    ]
    state = DeviceState(sm_mhz=1980, memory_mhz=2619, power_w=400.0, temperature_c=50)
    visits = make_visits(
        setting,
        {n: 60.0 * max(1.0, n / 48) for n in GRID},
        rounds=4,
        timer="cuda_events",
        launch="graph",
        state=state,
        protocol=plan.protocol,
    )
    floor = LaunchFloor(eager_us=4.5, graph_us=1.25, samples=(4.5, 4.25, 4.75))
    name = take_name("h20", "dense_ffn_paper", 1, plan)
    write_payloads(layout, name, plan, *counted, floor, *visits)
    profiled = ProfilePlan(sweeps=(Sweep(setting=setting, positions=(1, 16)),), environment="cpu")
    profiled_payloads = payloads(report(), profiled, "Nsight Compute 2025.1.0")
    name = take_name("h20", "dense_ffn_paper_profile", 1, profiled)
    write_payloads(layout, name, profiled, *profiled_payloads)


MADE = {"measured": make_measured, "simulated": make_simulated, "formats": make_formats,
        "kernels": make_kernels, "layers": make_layers, "steps": make_steps,
        "engine": make_engine, "tuned": make_tuned, "batched": make_batched,
        "watched": make_watched, "precise": make_precise}  # fmt: skip


def keep(project: Project, results: Path, folder: Path) -> None:
    """Copy a project's config, and of its results the log and what is derived, into a folder."""
    ignored = shutil.ignore_patterns("schema", "takes.yaml")
    shutil.copytree(project / "config", folder / "config", ignore=ignored)
    if (project / CURVE_FILES).is_dir():
        shutil.copytree(project / CURVE_FILES, folder / CURVE_FILES)
    for name in (*LOG, "tables"):
        shutil.copytree(results / name, folder / "root" / name)
    root = str(results.relative_to(project.folder))
    answers_by_words = answers(lambda *words: project.nearfree(*words, "--results", root))
    write_derived(folder / "root", derived(results) | answers_by_words)


def derive(folder: Path) -> None:
    """Write what is derived from a golden log again, by the code at hand."""
    with tempfile.TemporaryDirectory() as made:
        project = make_project(Path(made) / "project")
        shutil.rmtree(project / "config")
        shutil.copytree(folder, project.folder, dirs_exist_ok=True)
        with chdir(project.folder):
            remake(folder / "root", Path("config"), project / "results")
        shutil.rmtree(folder)
        keep(project, project / "results", folder)


def main() -> None:
    """Write a version's logs, or what is derived from them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", metavar="VERSION", help="the folder's name, such as 0_1_0")
    parser.add_argument("logs", metavar="LOG", nargs="*", help="which of them (default: all)")
    parser.add_argument("--derive", action="store_true", help="keep its events")
    args = parser.parse_args()
    os.environ |= NO_NETWORK  # the user's cache is not part of a log
    for name in args.logs or MADE:
        folder, make = HERE / args.version / name, MADE[name]
        if args.derive and folder.is_dir():
            derive(folder)
        if args.derive:
            continue
        if folder.exists():
            sys.exit(f"{folder} is there: golden events are never written again")
        with tempfile.TemporaryDirectory() as made:
            keep(*make(Path(made) / "project"), folder)


if __name__ == "__main__":
    main()
