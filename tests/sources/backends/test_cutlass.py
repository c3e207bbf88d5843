"""CUTLASS's dispatches: a tile's rows are read from the kernel's type."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends.cutlass import with_rows
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.language.interpret import Interpreter

KERNEL = """
template <typename Out, typename TileShape, typename Cluster, bool swap_ab_ = false>
struct gemm_of { using Tile = TileShape; };
template <typename Out>
struct config_small {
  using TileShape = Shape<_64, _16, _256>;
  using ClusterShape = Shape<_1, _1, _1>;
  using Gemm = gemm_of<Out, TileShape, ClusterShape, SWAP>;
};
template <typename Out>
struct config_large {
  using TileShape = Shape<_128, _256, _64>;
  using ClusterShape = Shape<_1, _1, _1>;
  using Gemm = conditional_t<true, gemm_of<Out, TileShape, ClusterShape>,
                             gemm_of<float, TileShape, ClusterShape>>;
};
template <typename Out, typename... Args>
void cutlass_gemm_x_dispatch(Tensor& out, Tensor const& a, Args&&... args) {
  using Small = typename config_small<Out>::Gemm;
  uint32_t const m = a.size(0);
  if (m <= 16) {
    return cutlass_gemm_caller_x<Small>(
        out, a, std::forward<Args>(args)...);
  }
  using Small = typename config_large<Out>::Gemm;
}
"""
LARGE = KERNEL.replace(
    "  using Small = typename config_large<Out>::Gemm;\n}",
    "  using Large = typename config_large<Out>::Gemm;\n  cutlass_gemm_caller_x<Large>(out, a);\n}",
)
LEAVES = {r"a\.size\(0\)": "rows", r"out\.size\(1\)": "columns"}


def rows(text: str, **inputs: int) -> object:
    """Return the answer of a text's dispatch."""
    program, root = cpp_program(
        with_rows({"x.cuh": text}), "cutlass_gemm_x_dispatch", leaves=LEAVES
    )
    return Interpreter(program).run(root, inputs)


@pytest.mark.parametrize(("swapped", "small"), [("true", 16), ("false", 64)])
def test_rows_are_on_the_second_side_where_operands_are_swapped(swapped: str, small: int) -> None:
    """If the kernel's parameter swaps operands, rows are the tile's second size, else its first."""
    text = LARGE.replace("SWAP", swapped)
    assert [rows(text, rows=m) for m in (1, 16, 17)] == [small, small, 128]


def test_lines_are_those_of_the_release() -> None:
    """Quotes are the release's own text, not the edited text that is parsed."""
    text = LARGE.replace("SWAP", "true")
    files = with_rows({"x.cuh": text})
    place = text[: text.index("return cutlass_gemm_caller_x<Small>")].count("\n") + 1
    assert files.locate("cutlass_gemm_x_dispatch").text.quote(place, place).text == (
        "return cutlass_gemm_caller_x<Small>("
    )


def test_a_tile_may_be_given_in_place() -> None:
    """A tile may be given as numbers or as a constant of the enclosing scope."""
    launch = "gemm_of<Out, Shape<_32, Int<TILE>, _64>, Shape<_1, _1, _1>, true>"
    text = LARGE.replace("SWAP", "true").replace(
        "  cutlass_gemm_caller_x<Large>(out, a);",
        f"  constexpr int TILE = 48;\n  cutlass_gemm_caller_x<{launch}>(out, a);\n  return;",
    )
    assert rows(text, rows=17) == 48


def test_a_structure_s_own_dispatch_is_read() -> None:
    """A structure's tile is that of the block that launches."""
    text = """
template <typename Arch, typename TileShape> struct gemm_of { };
struct config_a {
  using WarpShape = GemmShape<1, 1, 1>;
  template <typename Out, typename... Args>
  static void dispatch(Tensor& out, Args&&... args) {
    uint32_t const n = out.size(1);
    if (n <= 64) {
      using TileShape = typename cutlass::gemm::GemmShape<16, 64, 128>;
      return vllm::fallback_cutlass_gemm_caller<vllm::gemm_of<Sm, TileShape>, Other>(out);
    } else {
      using TileShape = typename cutlass::gemm::GemmShape<32, 64, 128>;
      return vllm::fallback_cutlass_gemm_caller<vllm::gemm_of<Sm, TileShape>, Other>(out);
    }
  }
};
template <typename Out, typename... Args>
inline void cutlass_gemm_x_dispatch(Tensor& out, Tensor const& a, Args&&... args) {
  return config_a::dispatch<Out>(out, std::forward<Args>(args)...);
}
"""
    assert [rows(text, columns=n) for n in (64, 65)] == [16, 32]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Shape<_64, _16, _256>", "TilesOf<Out>"),
        ("_16, _256", "_ROWS, _256"),
        ("typename TileShape,", "typename Elsewhere,"),
        ("using Small = typename config_small<Out>::Gemm;", ""),
        ("gemm_of<float, TileShape", "gemm_of<float, ClusterShape"),
        ("config_small<Out>::Gemm", "config_gone<Out>::Gemm"),
    ],
)
def test_an_unknown_form_is_refused(old: str, new: str) -> None:
    """A tile, size, parameter or alias that is missing or ambiguous is refused."""
    text = LARGE.replace("SWAP", "true")
    assert old in text
    with pytest.raises(SourceError, match=r"x\.cuh"):
        with_rows({"x.cuh": text.replace(old, new, 1)})
