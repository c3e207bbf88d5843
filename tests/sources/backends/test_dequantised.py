"""Products that unpack their weights first, read from made-up text."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends.dequantised import dequantised
from nearfree.sources.language.reading import read_rule
from nearfree.sources.language.rule import Rule

AWQ = "vllm/model_executor/layers/quantization/awq.py"
GPTQ = "csrc/quantization/gptq/q_gemm.cu"
PYTHON = """
class AWQLinearMethod(Base):
    def apply(self, layer, x, bias=None):
        FP16_MATMUL_HEURISTIC_CONDITION = x.shape[:-1].numel() >= 100
        if FP16_MATMUL_HEURISTIC_CONDITION:
            return unpacked(x)
        return packed(x)
"""
CUDA = """
#define MOST_ROWS 30
#define MOST_ROWS_8BIT 20
void gemm_half_q_half_cuda(int size_m, bool use_exllama, int bit) {
  bool use_reconstruct;
  if (use_exllama) {
    use_reconstruct = ((bit == 8 && size_m > MOST_ROWS_8BIT) || (bit != 8 && size_m > MOST_ROWS));
  } else {
    use_reconstruct = bit < 4;
  }
  if (use_reconstruct) { reconstruct(size_m); }
}
"""


def rules(python: str = PYTHON, cuda: str = CUDA) -> dict[str, Rule]:
    """Return the rules of some texts, by name."""
    readings = dequantised({AWQ: python, GPTQ: cuda})
    return {reading.rule: Rule(read_rule(reading, "vllm-linear", "1.0")) for reading in readings}


def test_the_rows_are_those_of_the_text() -> None:
    """AWQ's own kernel up to 99 rows, Exllama's up to 30, or 20 of 8 bits."""
    by_name = rules()
    awq = [by_name["awq_dequantises"].value({"rows": m}).value for m in (99, 100)]
    exllama = by_name["exllama_dequantises"]
    points = [(4, 30), (4, 31), (8, 20), (8, 21)]
    assert awq == [False, True]
    assert [exllama.value({"bits": bits, "rows": m}).value for bits, m in points] == [
        *(False, True, False, True)
    ]


def test_a_condition_of_awq_that_is_set_twice_is_refused() -> None:
    """A second assignment of the condition's name is refused."""
    again = "        FP16_MATMUL_HEURISTIC_CONDITION = bias is None\n        if FP16"
    with pytest.raises(SourceError, match="2 times"):
        rules(python=PYTHON.replace("        if FP16", again))


USED = "  if (use_reconstruct) {"


@pytest.mark.parametrize(
    "cuda",
    [
        CUDA.replace(USED, f"  use_reconstruct = use_reconstruct && size_m < 40;\n{USED}"),
        CUDA.replace(USED, f"  if (bit == 2) use_reconstruct = true;\n{USED}"),
        CUDA.replace("use_reconstruct", "unpacks"),
    ],
)
def test_a_switch_of_exllama_that_is_not_set_once_is_refused(cuda: str) -> None:
    """A switch that is set twice, or never, is refused."""
    with pytest.raises(SourceError, match=r"sets use_reconstruct in [02] statements"):
        rules(cuda=cuda)
