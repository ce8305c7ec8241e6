"""Kernels for Hopper GPUs are compiled here as they are there. One that fails to only makes an engine slow."""

import pytest

triton = pytest.importorskip("triton")
runtime = pytest.importorskip("triton.experimental.gluon._runtime")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

from omnitts.model import hopper, hopper_attention  # noqa: E402


def compiled(kernel, types: dict[str, str], constants: dict) -> dict[str, object]:
    """What the compiler makes of a kernel for compute capability 9.0."""
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name, kind in types.items() if kind.startswith("*")}
    source = runtime.GluonASTSource(
        kernel, signature, {places[name]: value for name, value in constants.items()}, aligned
    )
    options = {"num_warps": 4, "launch_pdl": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm


def block(rows: int, columns: int, kind: str = "bf16") -> str:
    """The type of a matrix that the copy engine reads in blocks."""
    element = {"bf16": gl.bfloat16, "fp8e4nv": gl.float8e4nv}[kind]
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], element)
    return f"tensordesc<{kind}[{rows}, {columns}],{layout!r}>"


@pytest.mark.parametrize("kind", ["bf16", "fp8e4nv"])
@pytest.mark.parametrize(("rotate", "tile"), [(True, 256), (False, 256), (False, 128)])
def test_products(kind, rotate, tile):
    depth = 64 if kind == "bf16" else 128
    scale = "*bf16" if kind == "bf16" else "*fp32"
    types = {
        **{"x": block(64, depth, kind), "weight": block(tile, depth, kind)},
        **{"out": block(64, 128 if rotate else tile // 2), "row_scale": scale, "column_scale": scale},
        **dict.fromkeys(("q_weight", "k_weight"), "*bf16"),
        **dict.fromkeys(("cos", "sin"), "*fp32"),
        **{"place": "*i32", "eps": "fp32", "positions": "i32"},
    }
    constants = {
        **{"N": 4096, "K": 1024, "DEPTH": depth, "TILE": tile, "STAGES": 4 if tile == 256 else 6},
        **{"SCALED": kind != "bf16", "ROTATE": rotate, "Q_END": 16, "K_END": 24, "EARLY": True},
    }
    made = compiled(hopper._product_kernel, types, constants)
    assert "wgmma.mma_async" in made["ptx"] and "griddepcontrol.wait" in made["ptx"] and made["cubin"]


@pytest.mark.parametrize(("keys", "stages"), [(128, 4), (64, 6)])
def test_attention(keys, stages):
    rows = hopper_attention.ROWS
    types = {
        **{"q": block(rows, 128), "k": block(keys, 128), "v": block(keys, 128), "stored": block(rows, 128)},
        **{"out": "*bf16", "tiles": "*i32", "scale": "fp32"},
    }
    constants = {"K_HEADS": 8, "KEYS": keys, "STAGES": stages, "EARLY": True}
    assert "wgmma.mma_async" in compiled(hopper_attention._attention_kernel, types, constants)["ptx"]
