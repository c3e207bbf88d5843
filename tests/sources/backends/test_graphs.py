"""Captured sizes of engines' CUDA graphs, in recorded releases and made-up text."""

import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends import sglang_graphs, vllm_graphs
from nearfree.sources.language.reading import read_rule
from nearfree.sources.language.rule import Rule

from sources.recorded import rules

EIGHTS = [1, 2, 4, *range(8, 513, 8)]
SIXTEENS = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
PLAIN = [1, 2, 4, 8, 12, *range(16, 257, 8)]
SPECULATING = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
VLLM = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192, "sm": 90, "tp": 1,
        "performance_mode": "balanced", "q": 1}  # fmt: skip


def captured(version: str, rule: str = "capture_sizes", **changes: Any) -> Any:
    """Return a list of captured sizes of vLLM."""
    return rules("vllm-graphs", version)[rule].value({**VLLM, **changes}).value


@pytest.mark.parametrize(
    ("version", "sizes"),
    [("0.9.1", EIGHTS), *((version, SIXTEENS) for version in
     ("0.14.0", "0.19.0", "0.20.2", "0.22.0", "0.24.0", "0.33.0"))],
)  # fmt: skip
def test_the_default_list_of_vllm(version: str, sizes: list[int]) -> None:
    """Sizes go by 8, since 0.11.1 by 16 from 256 on, up to the limits of memory and tokens."""
    assert captured(version) == sizes
    assert captured(version, max_num_batched_tokens=100)[-1] in (96, 100)


def test_a_small_server_captures_fewer_sizes() -> None:
    """Since 0.11.0 the list ends at twice the requests, since 0.13.0 at twice their q tokens."""
    assert captured("0.9.1", max_num_seqs=16)[-1] == 512
    assert captured("0.14.0", max_num_seqs=16)[-1] == 32
    assert captured("0.14.0", max_num_seqs=16, q=4)[-1] == 128


def test_options_and_gpus_have_sizes_of_their_own() -> None:
    """Interactivity has each size up to 32 since 0.17.0; sm10x goes up to 1024 since 0.28.0."""
    quick = {"performance_mode": "interactivity"}
    assert captured("0.14.0", **quick) == SIXTEENS
    assert captured("0.19.0", **quick) == [*range(1, 33), *SIXTEENS[7:]]
    assert captured("0.24.0", sm=100)[-1] == 512
    assert captured("0.33.0", sm=100)[-1] == captured("0.33.0", sm=103)[-1] == 1024
    assert captured("0.33.0", sm=120)[-1] == 512


def test_sizes_of_decodes_are_multiples_of_their_tokens() -> None:
    """Since 0.11.1 sizes are rounded up to multiples of q, up to the end."""
    assert "decode_sizes" not in rules("vllm-graphs", "0.9.1")
    for version in ("0.14.0", "0.24.0", "0.33.0"):
        assert captured(version, "decode_sizes") is None
        for q in (2, 3, 4, 5, 8):
            plain, by_tokens = captured(version, q=q), captured(version, "decode_sizes", q=q)
            rounded = {-(-size // q) * q for size in plain}
            assert by_tokens == sorted(size for size in rounded if size <= plain[-1])
    largest = [captured("0.24.0", "decode_sizes", q=q)[-1] // q for q in (2, 3, 4, 5, 8)]
    assert largest == [256, 166, 128, 100, 64]


def test_the_newest_list_has_whole_numbers_of_requests() -> None:
    """Since 0.29.0 also n q tokens are captured, for each n of the list for one token."""
    assert captured("0.24.0", q=3) == SIXTEENS
    counts = [*SIXTEENS, 1024]
    assert captured("0.33.0", q=3) == sorted({*SIXTEENS, *(3 * n for n in counts if n <= 170)})


def test_more_requests_where_there_is_memory() -> None:
    """A server runs 1024 requests from 70 GiB on, on an A100 from 160 GiB."""
    for version in ("0.9.1", "0.24.0", "0.33.0"):
        rule = rules("vllm-graphs", version)["max_num_seqs"]
        devices = [("h100", 69), ("h100", 70), ("nvidia a100-sxm4-80gb", 80), ("b200", 180)]
        limits = [
            rule.value({"memory_gib": gib, "device_name": name, "sm": 90}).value
            for name, gib in devices
        ]
        assert limits == [256, 1024, 256, 1024]


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10", "0.5.14", "0.5.23"])
def test_the_default_lists_of_sglang(version: str) -> None:
    """Speculation has denser sizes; since 0.5.10 the last size is `max_bs`."""
    rule = rules("sglang-graphs", version)["capture_sizes"]
    assert rule.value({"max_bs": 256, "width": 1}).value == PLAIN
    assert rule.value({"max_bs": 256, "width": 4}).value == SPECULATING
    ends = rule.value({"max_bs": 250, "width": 1}).value[-2:]
    assert ends == ([240, 248] if version == "0.5.9" else [248, 250])


@pytest.mark.parametrize("version", ["0.5.9", "0.5.14", "0.5.23"])
def test_sglang_captures_as_many_requests_as_it_runs(version: str) -> None:
    """With speculation 48 requests by default, shared by ranks of attention."""
    by_name = rules("sglang-graphs", version)
    assert by_name["mechanism_running_requests"].value({}).value == "48"
    given = {"max_bs": 256, "width": 3, "max_running_requests": 48, "alignment": 1}
    rule = by_name["decode_sizes"]
    assert rule.value(given).value == [size for size in SPECULATING if size <= 48]
    assert rule.value({**given, "max_running_requests": 45}).value[-2:] == [44, 45]
    shared = rule.value({**given, "alignment": 4}).value
    assert shared == [size for size in SPECULATING if size <= 48 and 3 * size % 4 == 0]


def test_the_largest_batch_of_sglang_goes_by_memory() -> None:
    """By memory and tp; since 0.5.20 doubled below 35 GiB."""

    def largest(version: str, tp: int) -> list[int]:
        rule = rules("sglang-graphs", version)["max_bs"]
        sizes = (19, 20, 34, 35, 59, 60, 159, 160)
        return [rule.value({"memory_gib": gib, "tp": tp}).value for gib in sizes]

    assert largest("0.5.9", 2) == [8, 24, 24, 32, 32, 256, 256, 512]
    assert largest("0.5.14", 4) == [8, 80, 80, 160, 160, 512, 512, 512]
    assert largest("0.5.23", 1) == [8, 48, 48, 32, 32, 256, 256, 512]


@pytest.mark.parametrize(
    ("backend", "batches"),
    [
        ("flash_attn", ["absent", "ALWAYS or UNIFORM_BATCH", "ALWAYS or UNIFORM_BATCH"]),
        ("triton_attn", ["absent", "ALWAYS", "ALWAYS"]),
        ("flashinfer", ["absent", *["UNIFORM_BATCH or UNIFORM_SINGLE_TOKEN_DECODE"] * 2]),
        ("cutlass_mla", ["absent", *["UNIFORM_SINGLE_TOKEN_DECODE"] * 2]),
        ("flashmla", ["absent", "UNIFORM_BATCH", "UNIFORM_BATCH"]),
        ("flashinfer_mla", ["absent", "UNIFORM_BATCH", "ALWAYS"]),
        ("triton_mla", ["absent", "absent", "UNIFORM_BATCH"]),
    ],
)
def test_a_backend_says_which_batches_are_in_full_graphs(backend: str, batches: list[str]) -> None:
    """Each backend's file or method states its full graphs; vLLM 0.9.1 has none."""
    full = []
    for version in ("0.9.1", "0.14.0", "0.33.0"):
        rule = rules("vllm-graphs", version)[f"mechanism_support_{backend}"]
        full.append(rule.value({}).value)
    assert full == batches


METHOD = """
def _set_cudagraph_sizes(self):
    if self.model_config is not None and not self.model_config.enforce_eager:
        most = min(self.scheduler_config.max_num_seqs * 2, 64)
        cudagraph_capture_sizes = [i for i in [1, 2, 4] if i <= most]
        cudagraph_capture_sizes += list(range(8, most + 1, 8))
        if self.scheduler_config.max_num_batched_tokens not in cudagraph_capture_sizes:
            cudagraph_capture_sizes.append(self.scheduler_config.max_num_batched_tokens)
        cudagraph_capture_sizes = sorted(set(cudagraph_capture_sizes))
        self.compilation_config.max_cudagraph_capture_size = cudagraph_capture_sizes[-1]
        logger.info("captured")
        self.compilation_config.cudagraph_capture_sizes = cudagraph_capture_sizes
"""
DEFAULTS = """
def get_batch_defaults(device_memory, device_name):
    if device_memory >= 70 * GiB_bytes and "a100" not in device_name:
        default_max_num_seqs = {UsageContext.OPENAI_API_SERVER: 1024}
    else:
        default_max_num_seqs = {UsageContext.OPENAI_API_SERVER: 256}
    return default_max_num_seqs
"""


def files(method: str = METHOD) -> dict[str, str]:
    """Return a made-up release."""
    return {
        "vllm/config/vllm.py": f"class VllmConfig:\n{textwrap.indent(method, '    ')}",
        "vllm/engine/arg_utils.py": f"class EngineArgs:\n{textwrap.indent(DEFAULTS, '    ')}",
    }


def test_the_rule_is_what_the_method_itself_does() -> None:
    """A method run by Python sets the list that its rule gives."""
    (reading, *_) = vllm_graphs.readings(files())
    rule = Rule(read_rule(reading, "vllm-graphs", "1"))
    scope: dict[str, Any] = {"logger": SimpleNamespace(info=lambda _: None)}
    exec(METHOD, scope)  # noqa: S102 (the text above)
    for context in reading.contexts:
        options = SimpleNamespace()
        scheduler = {name: context[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
        scope["_set_cudagraph_sizes"](
            SimpleNamespace(
                model_config=SimpleNamespace(enforce_eager=False),
                scheduler_config=SimpleNamespace(**scheduler),
                compilation_config=options,
            )
        )
        assert rule.value(context).value == options.cudagraph_capture_sizes


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("_set_cudagraph_sizes", "_set_sizes", "nowhere in the release"),
        ("cudagraph_capture_sizes", "graph_sizes", "_set_cudagraph_sizes sets neither"),
        ("max_num_seqs * 2", "max_num_seqs * (1 + self.num_speculative_tokens)", "adjust_cudagr"),
        ("list(range(8, most + 1, 8))", "sizes_of(most)", "unknown"),
        ("self.scheduler_config.max_num_seqs", "self.scheduler_config.seqs", "outside the known"),
        ("sorted(set(cudagraph_capture_sizes))", "set(os.sched_getaffinity(0))", "outside|unknown"),
    ],
)
def test_text_of_another_form_is_refused(old: str, new: str, says: str) -> None:
    """A list that is built in another way is refused."""

    def read(release: dict[str, str]) -> list[Any]:
        return [read_rule(reading, "vllm-graphs", "1") for reading in vllm_graphs.readings(release)]

    assert read(files())
    with pytest.raises(SourceError, match=says):
        read(files(METHOD.replace(old, new)))


KEPT = "self.compilation_config.cudagraph_capture_sizes"


@pytest.mark.parametrize(
    "change",
    [f"{KEPT}.append(3)", f"{KEPT} = [1]", f"{KEPT} += [3]", f"{KEPT}[0] = 3", f"del {KEPT}[0]"],
)
def test_a_list_that_is_changed_where_it_is_kept_is_refused(change: str) -> None:
    """A later change of the object's own list is refused."""
    with pytest.raises(SourceError, match=f"changes {KEPT} in line"):
        vllm_graphs.readings(files(f"{METHOD}        {change}\n"))
    without_graphs = f"    else:\n        {KEPT} = []\n"
    assert vllm_graphs.readings(files(METHOD + without_graphs))


def test_a_list_that_is_built_twice_is_refused() -> None:
    """Two methods of one name are refused."""
    twice = {**files(), "vllm/config/__init__.py": files()["vllm/config/vllm.py"]}
    with pytest.raises(SourceError, match="is defined at"):
        vllm_graphs.readings(twice)
    with pytest.raises(SourceError, match="nowhere in the release"):
        sglang_graphs.readings(files())
