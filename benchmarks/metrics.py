"""What PSNR and SSIM a guess reaches without any update, and how SSIM depends on who computes it.

    python benchmarks/metrics.py photos faces digits cifar10.npz --out docs/results/metrics.json

torchmetrics and pytorch-msssim are compared where they are installed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from skimage.metrics import structural_similarity
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from undelta.assignment import match
from undelta.client.datasets import open_dataset
from undelta.evaluation.metrics import fraction_recovered, psnr, ssim
from undelta.files import write_bytes
from undelta.seeding import stream
from undelta.trials.record import versions

THRESHOLDS = (16, 18, 20, 22)
MOST = 1000  # images per source


def guesses(images: Tensor, generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Guesses made without any update, each with the truth it stands for."""
    half = len(images) // 2
    mixed = images[torch.randperm(len(images), generator=generator)]
    others, truth = mixed[:half], mixed[half : 2 * half]
    return {
        "its own mean color": (images.mean(dim=(2, 3), keepdim=True).expand_as(images), images),
        "the mean of all images": (images.mean(dim=0, keepdim=True).expand_as(images), images),
        "other images, matched": (others[match(others, truth)], truth),
    }


def chance(sources: list[str]) -> list[dict[str, Any]]:
    rows = []
    for source in sources:
        dataset = open_dataset(source)
        images = dataset.draw(range(min(MOST, len(dataset))), dataset.native_size or 32)
        for name, (guess, truth) in guesses(images, stream("benchmark", 0)).items():
            values, similar = psnr(guess, truth), ssim(guess, truth)
            rows.append(
                {
                    "data": Path(source).stem,
                    "images": len(images),
                    "size": images.shape[-1],
                    "guess": name,
                    "median": values.median().item(),
                    **{f"at {least}": fraction_recovered(values.tolist(), least) for least in THRESHOLDS},
                    "SSIM at 0.5": None if similar.isnan().any() else (similar >= 0.5).double().mean().item(),
                }
            )
    return rows


def by_scikit_image(data_range: float = 1, **settings: Any) -> Callable[[Tensor, Tensor], float]:
    def mean(images: Tensor, originals: Tensor) -> float:
        pairs = zip(images.double().numpy(), originals.double().numpy(), strict=True)
        values = [structural_similarity(x, y, data_range=data_range, channel_axis=0, **settings) for x, y in pairs]
        # With full=True the map of all windows comes along, border included.
        return float(sum(value[1].mean() if isinstance(value, tuple) else value for value in values) / len(values))

    return mean


def grey(images: Tensor) -> Tensor:
    return (images * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


GAUSSIAN: dict[str, Any] = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
COMPUTED: dict[str, Callable[[Tensor, Tensor], float]] = {
    "undelta": lambda x, y: ssim(x, y).mean().item(),
    "scikit-image, our settings": by_scikit_image(**GAUSSIAN),
    "scikit-image, its defaults (7×7 uniform window, sample covariance)": by_scikit_image(),
    "windows over the border, reflected": by_scikit_image(**GAUSSIAN, full=True),
    "on luma only": lambda x, y: ssim(grey(x), grey(y)).mean().item(),
    "data range 2 for pixels in [0, 1]": by_scikit_image(data_range=2, **GAUSSIAN),
}


def libraries() -> dict[str, Callable[[Tensor, Tensor], float]]:
    found: dict[str, Callable[[Tensor, Tensor], float]] = {}
    try:
        torchmetrics = importlib.import_module("torchmetrics.functional.image")
        name = f"torchmetrics {version('torchmetrics')}"
        compute = torchmetrics.structural_similarity_index_measure
        found[name] = lambda x, y: float(compute(x.double(), y.double(), data_range=1.0))
    except ImportError:
        pass
    try:
        msssim = importlib.import_module("pytorch_msssim")
        name = f"pytorch-msssim {version('pytorch-msssim')}"
        found[name] = lambda x, y: float(msssim.ssim(x.double(), y.double(), data_range=1.0))
    except ImportError:
        pass
    return found


def variants() -> list[dict[str, Any]]:
    """Mean SSIM of the bundled photographs at 32 × 32, with noise and blurred."""
    photos = open_dataset("photos")
    images = photos.draw(range(len(photos)), 32)
    noise = torch.randn(images.shape, generator=stream("benchmark", 1))
    noisy = (images + 0.1 * noise).clamp(0, 1)
    blurred = F.avg_pool2d(images, kernel_size=3, stride=1, padding=1, count_include_pad=False)
    return [
        {"computed by": name, "noisy": compute(noisy, images), "blurred": compute(blurred, images)}
        for name, compute in {**COMPUTED, **libraries()}.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    def show(value: Any) -> str:
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(map(show, row.values())) + " |" for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    content = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "chance": chance(options.sources),
        "ssim": variants(),
    }
    write_bytes(options.out, json.dumps(content, indent=1).encode())
    print(table(content["chance"]), table(content["ssim"]), sep="\n\n")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
