"""LPIPS: its mechanics with random weights, its values with the published ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from undelta.client.datasets import open_dataset
from undelta.client.datasets.folders import read_picture
from undelta.errors import ConfigError, DataError
from undelta.evaluation import lpips as module
from undelta.evaluation.backbones import BACKBONES, BackboneName
from undelta.evaluation.lpips import Lpips, find_weights, load_lpips

NAMES: list[BackboneName] = ["alex", "vgg"]
AVAILABLE = {name: find_weights(name) for name in NAMES}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> BackboneName:
    chosen: BackboneName = request.param
    return chosen


@pytest.fixture(scope="module")
def weights_file(name: BackboneName, tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for key, shape in BACKBONES[name].shapes().items():
        # Positive heads, as in the published weights, make the result a distance; He's scale keeps deep features alive.
        scale = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5 if len(shape) == 4 else 0.05
        weights[key] = scale * (torch.rand if key.startswith("lin") else torch.randn)(shape, generator=generator)
    path = tmp_path_factory.mktemp("lpips") / f"lpips-{name}.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture(scope="module")
def lpips(weights_file: Path, name: BackboneName) -> Lpips:
    loaded = load_lpips(weights_file, backbone=name)
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("shape", [(2, 3, 70, 64), (2, 1, 64, 64), (3, 1, 8, 8), (1, 3, 25, 40)])
def test_lpips_is_a_distance_per_image(lpips: Lpips, shape: tuple[int, ...]) -> None:
    x, y = torch.rand(2, *shape, generator=torch.Generator().manual_seed(2))
    assert lpips(x, x).tolist() == [0.0] * shape[0]
    assert lpips(x, y).shape == shape[:1]
    assert (lpips(x, y) > 0).all()
    torch.testing.assert_close(lpips(x, y), lpips(y, x))


def test_small_and_grey_images_follow_the_documented_rule(lpips: Lpips) -> None:
    x, y = torch.rand(2, 2, 1, 16, 16, generator=torch.Generator().manual_seed(2))
    large = (F.interpolate(z, size=64, mode="bilinear").repeat(1, 3, 1, 1) for z in (x, y))
    torch.testing.assert_close(lpips(x, y), lpips(*large))


def plain_network(name: BackboneName) -> nn.Sequential:
    """torchvision's ``features``, written out."""
    layers: list[nn.Module] = []
    if name == "alex":
        layers += [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
        layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
        for before, after in ((192, 384), (384, 256), (256, 256)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers)
    channels = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        channels = width or channels
    return nn.Sequential(*layers)


@torch.no_grad()
def test_the_distance_is_that_of_the_published_formula(lpips: Lpips, name: BackboneName, weights_file: Path) -> None:
    weights, network = load_file(weights_file), plain_network(name)
    network.load_state_dict({key[9:]: value for key, value in weights.items() if key.startswith("features.")})
    taps = {"alex": (1, 4, 7, 9, 11), "vgg": (3, 8, 15, 22, 29)}[name]
    normalize = torch.tensor([[-0.030, -0.088, -0.188], [0.458, 0.448, 0.450]])[..., None, None]

    def features(image: Tensor) -> list[Tensor]:
        x, found = (2 * image - 1 - normalize[0]) / normalize[1], []
        for index, layer in enumerate(network):
            x = layer(x)
            if index in taps:
                found.append(F.normalize(x, dim=1))
        return found

    x, y = torch.rand(2, 1, 3, 80, 64, generator=torch.Generator().manual_seed(2))
    expected = 0.0
    for head, (one, two) in enumerate(zip(features(x), features(y), strict=True)):
        difference = (one - two).square() * weights[f"lin{head}.model.1.weight"]
        expected += difference.sum(dim=1).mean().item()
    assert lpips(x, y).item() == pytest.approx(expected, rel=1e-5)


def test_a_batch_is_measured_in_parts_that_fit_into_memory(lpips: Lpips, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.rand(2, 3, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    whole = lpips(x, y)
    monkeypatch.setattr(module, "_PIXELS_AT_ONCE", 2 * 64 * 64)
    torch.testing.assert_close(lpips(x, y), whole)
    monkeypatch.setattr(module, "_PIXELS_AT_ONCE", 1)
    torch.testing.assert_close(lpips(x, y), whole)


def test_a_diverged_image_spoils_only_its_own_distance(lpips: Lpips) -> None:
    x, y = torch.rand(2, 2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    for broken in (torch.nan, torch.inf):
        x[0, 0, 5, 5] = broken
        assert lpips(x, y).isfinite().tolist() == [False, True]


def test_shapes_that_do_not_fit_are_refused(lpips: Lpips) -> None:
    for shape in ((1, 3, 64, 64), (2, 2, 64, 64)):
        with pytest.raises(ValueError, match="two batches"):
            lpips(torch.zeros(shape), torch.zeros(2, *shape[1:]))


def test_weights_are_found_by_variable_then_cache(
    weights_file: Path, name: BackboneName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = {"alex": "UNDELTA_LPIPS", "vgg": "UNDELTA_LPIPS_VGG"}[name]
    for each in ("UNDELTA_LPIPS", "UNDELTA_LPIPS_VGG"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_weights(name) is None
    assert load_lpips(backbone=name) is None
    cached = tmp_path / "undelta" / f"lpips-{name}.safetensors"
    cached.parent.mkdir()
    cached.symlink_to(weights_file)
    assert find_weights(name) == cached
    assert load_lpips(backbone=name) is not None
    monkeypatch.setenv(variable, str(weights_file))
    assert find_weights(name) == weights_file
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    with pytest.raises(DataError, match=f"{variable} names"):
        find_weights(name)


def test_unsound_weights_are_refused(tmp_path: Path, name: BackboneName) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(DataError, match=f"cannot read LPIPS weights.*--backbone {name} --force"):
        load_lpips(path, backbone=name)
    for content in (b"", b"garbage" * 10):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot read LPIPS weights"):
            load_lpips(path, backbone=name)
    save_file({"features.0.bias": torch.zeros(3)}, path)
    with pytest.raises(DataError, match=r"expected features\.0\.bias \(64,\), got \(3,\)"):
        load_lpips(path, backbone=name)


def test_one_backbones_weights_are_not_taken_for_the_others(weights_file: Path, name: BackboneName) -> None:
    other = "vgg" if name == "alex" else "alex"
    with pytest.raises(DataError, match=f"no LPIPS v0.1 {BACKBONES[module.choose(other).name].title}"):
        load_lpips(weights_file, backbone=other)


def test_an_unknown_backbone_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown LPIPS backbone 'squeeze'; choose from alex, vgg"):
        load_lpips(backbone="squeeze")


def published(name: BackboneName) -> Lpips:
    if AVAILABLE[name] is None:
        pytest.skip(f"needs the LPIPS weights: undelta fetch lpips --backbone {name}")
    loaded = load_lpips(AVAILABLE[name], backbone=name)
    assert loaded is not None
    return loaded


# Recorded when the example triple of the LPIPS project agreed with its published values (see below).
@pytest.mark.parametrize(("name", "side", "expected"), [("alex", 256, 0.3100), ("vgg", 128, 0.2880)])
def test_published_weights_give_known_values(name: BackboneName, side: int, expected: float) -> None:
    lpips = published(name)
    image = open_dataset("photos").draw([0], side)
    blurred = F.avg_pool2d(image, kernel_size=5, stride=1, padding=2, count_include_pad=False)
    assert lpips(image, image).item() == 0
    assert lpips(blurred, image).item() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("name", "expected"), [("alex", (0.7219, 0.1376)), ("vgg", (0.5686, 0.4217))])
def test_the_example_triple_gives_its_published_values(name: BackboneName, expected: tuple[float, float]) -> None:
    lpips, weights = published(name), AVAILABLE[name]
    assert weights is not None
    if not (weights.parent / "ex_ref.png").is_file():
        pytest.skip("needs ex_ref.png, ex_p0.png and ex_p1.png of the LPIPS project beside its weights")
    # The triple is 64 x 64, so reading it at this size leaves it as it is.
    reference, *others = (read_picture(weights.parent / f"ex_{each}.png", 64)[None] for each in ("ref", "p0", "p1"))
    assert [lpips(reference, other).item() for other in others] == pytest.approx(expected, abs=1e-4)
