"""Which CPU kernels the engine avoids, and what it uses instead: times of both in turn, one thread.

python benchmarks/kernels.py --out docs/results/kernels.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812
from workloads import Work, alternating, observe, ours, write

from undelta.engine import products
from undelta.engine.affine import Convolution
from undelta.engine.allocator import keep_freed_memory
from undelta.engine.moments import centered_and_squares
from undelta.engine.norms import BatchNorm
from undelta.engine.ops import Cell, aten
from undelta.engine.tracing import _tile_means

CONVOLUTION = Convolution(weight="w", bias=None, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
NORM = BatchNorm(weight="w", bias="b", eps=1e-5)


WORKS = (
    Work("resnet18", 64, 8, "eval", batches=4, stem="imagenet"),
    Work("resnet18", 64, 8, "eval", stem="imagenet"),
    Work("cnn", 32, 50, batches=4),
)


def with_and_without(work: Work) -> tuple[Callable[[], object], Callable[[], object]]:
    """One iteration with torch's own products of matrices, and with those that the engine chooses here."""
    step = ours(observe(work))

    def usual() -> None:
        with patch.object(products, "mkl_is_behind", lambda: False):
            step()

    return usual, step


def pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Name -> (the usual kernel, what the engine uses)."""
    maps, flat = torch.randn(8, 64, 32, 32), torch.randn(2_359_296)
    weight, bias = torch.rand(64), torch.rand(64)
    images, delta, first = torch.randn(50, 3, 32, 32), torch.randn(50, 64, 32, 32), torch.randn(64, 3, 3, 3)
    tiny, tiny_delta, deep = torch.randn(8, 512, 4, 4), torch.randn(8, 512, 4, 4), torch.randn(512, 512, 3, 3)
    dots = torch.randn(2, 512, 2, 2)
    wide = torch.randn(64, 64, 3, 3)
    rows, out, matrix = torch.randn(8, 4608), torch.randn(8, 512), deep.flatten(1)
    last = maps.contiguous(memory_format=torch.channels_last)

    def adjoint(inputs: torch.Tensor, given: torch.Tensor, kernel: torch.Tensor, mask: tuple[bool, bool]) -> object:
        sides = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1, (*mask, False))
        return aten.convolution_backward(given, inputs, kernel, None, *sides)

    return {
        "moments of a BatchNorm input (var_mean)": (
            lambda: torch.var_mean(maps, [0, 2, 3]),
            lambda: centered_and_squares(maps),
        ),
        "variance of a layer's update (var_mean)": (
            lambda: torch.var_mean(flat),
            lambda: (flat.sum(), torch.dot(flat, flat)),
        ),
        "BatchNorm forward (native_batch_norm)": (
            lambda: torch.native_batch_norm(maps, weight, bias, None, None, True, 0.0, 1e-5),
            lambda: NORM.forward(Cell(), {"w": weight, "b": bias}, maps),
        ),
        "2x2 mean pooling (avg_pool2d)": (
            lambda: F.avg_pool2d(maps, 2),
            lambda: _tile_means(maps, kernel=(2, 2)),
        ),
        "adjoint of 3-channel images (convolution_backward)": (
            lambda: adjoint(images, delta, first, (True, False)),
            lambda: CONVOLUTION._input_adjoint(images, (delta, first)),
        ),
        "weight gradient on 4x4 maps (convolution_backward)": (
            lambda: adjoint(tiny, tiny_delta, deep, (False, True)),
            lambda: CONVOLUTION._weight_adjoint(tiny_delta, tiny, deep),
        ),
        "convolution on 2x2 maps (conv2d)": (
            lambda: F.conv2d(dots, deep, None, 1, 1),
            lambda: CONVOLUTION._apply(dots, deep),
        ),
        "its adjoint (convolution_backward)": (
            lambda: adjoint(dots, dots, deep, (True, False)),
            lambda: CONVOLUTION._input_adjoint(dots, (dots, deep)),
        ),
        "8 inputs times a wide weight (mm)": (
            lambda: F.linear(rows, matrix),
            lambda: products.linear(rows, matrix),
        ),
        "a wide weight's gradient by 8 inputs (mm)": (
            lambda: out.t() @ rows,
            lambda: products.product(out.t(), rows),
        ),
        **{f"AWA's iteration, {work.name} (mm)": with_and_without(work) for work in WORKS},
        "not used: channels-last convolution": (
            lambda: F.conv2d(maps, wide, None, 1, 1),
            lambda: F.conv2d(last, wide, None, 1, 1),
        ),
    }


def table(cells: dict[str, Any]) -> str:
    lines = ["| work (usual kernel) | usual / ours |", "|---|---|"]
    for name, (usual, other) in cells.items():
        lines.append(f"| {name} | {statistics.median(usual) / statistics.median(other):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--table", action="store_true", help="print the committed table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())["seconds"]))
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    cells: dict[str, tuple[list[float], list[float]]] = {}
    for name, (usual, other) in pairs().items():
        cells[name] = ([], [])
        for _, function in alternating({"usual": usual, "ours": other}, 3):
            function()
        for place, function in alternating({"0": usual, "1": other}, options.rounds):
            began = time.perf_counter()
            function()
            cells[name][int(place)].append(time.perf_counter() - began)
    write(options.out, {"onednn": products.mkl_is_behind() and products.works(), "seconds": cells})
    print(table(cells))


if __name__ == "__main__":
    main()
