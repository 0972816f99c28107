"""LPIPS: its mechanics with random weights, its values with the published ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F  # noqa: N812

from undelta.client.datasets import open_dataset
from undelta.client.datasets.folders import read_picture
from undelta.errors import DataError
from undelta.evaluation.lpips import SHAPES, find_weights, load_lpips

AVAILABLE = find_weights()


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(1)
    # Positive heads, as in the published weights; they make the result a distance.
    weights = {
        name: 0.05 * (torch.rand if name.startswith("lin") else torch.randn)(shape, generator=generator)
        for name, shape in SHAPES.items()
    }
    path = tmp_path_factory.mktemp("lpips") / "lpips-alex.safetensors"
    save_file(weights, path)
    return path


@pytest.mark.parametrize("shape", [(2, 3, 70, 64), (2, 1, 64, 64), (3, 1, 8, 8), (1, 3, 25, 40)])
def test_lpips_is_a_distance_per_image(weights_file: Path, shape: tuple[int, ...]) -> None:
    lpips = load_lpips(weights_file)
    assert lpips is not None
    x, y = torch.rand(2, *shape, generator=torch.Generator().manual_seed(2))
    assert lpips(x, x).tolist() == [0.0] * shape[0]
    assert lpips(x, y).shape == shape[:1]
    assert (lpips(x, y) > 0).all()
    torch.testing.assert_close(lpips(x, y), lpips(y, x))


def test_small_and_grey_images_follow_the_documented_rule(weights_file: Path) -> None:
    lpips = load_lpips(weights_file)
    assert lpips is not None
    x, y = torch.rand(2, 2, 1, 16, 16, generator=torch.Generator().manual_seed(2))
    large = (F.interpolate(z, size=64, mode="bilinear").repeat(1, 3, 1, 1) for z in (x, y))
    torch.testing.assert_close(lpips(x, y), lpips(*large))


def test_shapes_that_do_not_fit_are_refused(weights_file: Path) -> None:
    lpips = load_lpips(weights_file)
    assert lpips is not None
    for shape in ((1, 3, 64, 64), (2, 2, 64, 64)):
        with pytest.raises(ValueError, match="two batches"):
            lpips(torch.zeros(shape), torch.zeros(2, *shape[1:]))


def test_weights_are_found_by_variable_then_cache(
    weights_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_weights() is None
    assert load_lpips() is None
    cached = tmp_path / "undelta" / "lpips-alex.safetensors"
    cached.parent.mkdir()
    cached.symlink_to(weights_file)
    assert find_weights() == cached
    monkeypatch.setenv("UNDELTA_LPIPS", str(weights_file))
    assert find_weights() == weights_file
    monkeypatch.setenv("UNDELTA_LPIPS", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="UNDELTA_LPIPS"):
        find_weights()


def test_unsound_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(DataError, match="cannot read LPIPS weights"):
        load_lpips(path)
    for content in (b"", b"garbage" * 10):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot read LPIPS weights"):
            load_lpips(path)
    save_file({"features.0.bias": torch.zeros(3)}, path)
    with pytest.raises(DataError, match=r"expected features\.0\.bias \(64,\), got \(3,\)"):
        load_lpips(path)


@pytest.mark.skipif(AVAILABLE is None, reason="needs the LPIPS weights: set UNDELTA_LPIPS to the file")
def test_published_weights_give_known_values() -> None:
    lpips = load_lpips(AVAILABLE)
    assert lpips is not None
    image = open_dataset("photos").draw([0], 256)
    blurred = F.avg_pool2d(image, kernel_size=5, stride=1, padding=2, count_include_pad=False)
    assert lpips(image, image).item() == 0
    # Recorded when the example triple of the LPIPS project agreed with its published values (see below).
    assert lpips(blurred, image).item() == pytest.approx(0.3100, abs=1e-3)


EXAMPLE = AVAILABLE.parent if AVAILABLE else None


@pytest.mark.skipif(
    EXAMPLE is None or not (EXAMPLE / "ex_ref.png").is_file(),
    reason="needs ex_ref.png, ex_p0.png and ex_p1.png of the LPIPS project beside its weights",
)
def test_the_example_triple_gives_its_published_values() -> None:
    lpips = load_lpips(AVAILABLE)
    assert lpips is not None
    assert EXAMPLE is not None
    # The triple is 64 x 64, so reading it at this size leaves it as it is.
    reference, first, second = (read_picture(EXAMPLE / f"ex_{name}.png", 64)[None] for name in ("ref", "p0", "p1"))
    assert lpips(reference, first).item() == pytest.approx(0.7219, abs=1e-4)
    assert lpips(reference, second).item() == pytest.approx(0.1376, abs=1e-4)
