"""Data sets of other libraries: real ones of Hugging Face's `datasets` on disk, and torchvision's interface."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from undelta.client.datasets import open_dataset, origin_of
from undelta.client.datasets.hub import open_hub
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 10, 10, 3), dtype=np.uint8)
NAMES = ["cat", "dog", "fish"]
LABELS = [0, 1, 1, 0, 1, 0]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real library, without a network and with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library = pytest.importorskip("datasets", reason='datasets is not installed: pip install "undelta[hf]"')
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    open_hub.cache_clear()
    return library


def table(library: Any, pixels: Any = PIXELS, **columns: Any) -> Any:
    features = {"image": library.Image(), "label": library.ClassLabel(names=NAMES)}
    rows = {"image": [Image.fromarray(one) for one in pixels], "label": LABELS, **columns}
    features |= {key: library.Value("int64") for key in columns if key not in features}
    return library.Dataset.from_dict(rows, features=library.Features(features))


def same(data: Any, pixels: Any = PIXELS) -> bool:
    images = data.draw(range(len(pixels)), 10)
    expected = torch.from_numpy(pixels.copy().reshape(len(pixels), 10, 10, -1)).permute(0, 3, 1, 2) / 255
    return torch.equal(images, expected)


def test_parquet_files_and_folders_of_them_are_data_sets(library: Any, tmp_path: Path) -> None:
    folder = tmp_path / "animals" / "data"
    folder.mkdir(parents=True)
    table(library).to_parquet(folder / "train-00000-of-00001.parquet")
    for source in (f"hf:{tmp_path / 'animals'}", f"hf:{tmp_path / 'animals'}:train", str(tmp_path / "animals")):
        data = open_dataset(source)
        assert (len(data), data.classes, data.channels, data.native_size) == (6, 3, 3, 10)
        assert data.labels.tolist() == LABELS
        assert same(data)
    assert same(open_dataset(str(next(folder.iterdir()))))
    scenario = Scenario(data=f"hf:{tmp_path / 'animals'}", num_samples=2, model="mlp", epochs=1, batches=1)
    assert disclose(scenario.draw(0), scenario).image.classes == 3


def test_grey_pictures_stay_grey_and_known_names_have_their_statistics(library: Any, tmp_path: Path) -> None:
    table(library, PIXELS[..., 0]).save_to_disk(tmp_path / "my-mnist")
    data = open_dataset(f"hf:{tmp_path / 'my-mnist'}")
    assert (data.channels, data.mean) == (1, (0.1307,))
    assert same(data, PIXELS[..., 0])


def test_of_several_splits_one_is_chosen(library: Any, tmp_path: Path) -> None:
    both = library.DatasetDict({"train": table(library), "test": table(library, PIXELS[::-1])})
    both.save_to_disk(tmp_path / "both")
    assert same(open_dataset(f"hf:{tmp_path / 'both'}:test"), PIXELS[::-1])
    assert same(open_dataset(f"hf:{tmp_path / 'both'}"))
    with pytest.raises(DataError, match="cannot open"):
        open_dataset(f"hf:{tmp_path / 'both'}:validation")


def test_a_folder_of_pictures_is_read_by_the_library_too(library: Any, tmp_path: Path) -> None:
    for name, one, label in zip("abcdef", PIXELS, LABELS, strict=True):
        (tmp_path / "pictures" / "train" / NAMES[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(tmp_path / "pictures" / "train" / NAMES[label] / f"{name}.png")
    data = open_dataset(f"hf:{tmp_path / 'pictures'}")
    assert sorted(data.labels.tolist()) == sorted(LABELS)
    assert data.draw([0], 10).shape == (1, 3, 10, 10)


def test_a_name_that_is_not_in_the_cache_is_refused_offline(library: Any) -> None:
    with pytest.raises(DataError, match="cannot open 'hf:nobody/nothing'"):
        open_dataset("hf:nobody/nothing")


def test_code_beside_the_data_is_never_run(library: Any, tmp_path: Path) -> None:
    folder = tmp_path / "trap"
    folder.mkdir()
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    with pytest.raises(DataError):
        open_dataset(f"hf:{folder}")
    assert not (tmp_path / "sprung").exists()


def test_data_without_labels_or_pictures_are_refused(library: Any, tmp_path: Path) -> None:
    table(library).remove_columns("label").save_to_disk(tmp_path / "blind")
    table(library).remove_columns("image").save_to_disk(tmp_path / "empty")
    table(library, more=LABELS).rename_column("more", "labels").cast_column(
        "label", library.ClassLabel(names=NAMES)
    ).save_to_disk(tmp_path / "two")
    hidden = library.Dataset.from_dict({"image": [Image.fromarray(PIXELS[0])], "label": [-1]})
    hidden.cast_column("image", library.Image()).save_to_disk(tmp_path / "hidden")
    for name, message in (
        ("blind", "a column of labels"),
        ("empty", "one column of images"),
        ("hidden", "labeled split"),
    ):
        with pytest.raises(DataError, match=message):
            open_dataset(f"hf:{tmp_path / name}")
    assert open_dataset(f"hf:{tmp_path / 'two'}").labels.tolist() == LABELS  # "label" counts first


def test_a_picture_of_a_strange_format_is_refused(library: Any, tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(stream, format="EPS")  # which Pillow reads with a program from outside
    rows = {"image": [{"bytes": stream.getvalue(), "path": None}], "label": [0]}
    features = library.Features({"image": library.Image(), "label": library.Value("int64")})
    library.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "eps")
    with pytest.raises(DataError, match="cannot"):
        open_dataset(f"hf:{tmp_path / 'eps'}")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    open_hub.cache_clear()
    with pytest.raises(DataError, match=r'pip install "undelta\[hf\]"'):
        open_dataset("hf:mnist")


def test_splits_of_one_source_have_one_origin() -> None:
    assert origin_of("hf:cifar10:test") == origin_of("hf:cifar10:train") == origin_of("hf:cifar10")
    assert origin_of("torchvision:MNIST") != origin_of("hf:MNIST")


class Pictures:
    """A stand-in with the documented interface of torchvision's older data sets; the real package is seldom here."""

    def __init__(self, root: str, train: bool = True, transform: Any = None, download: bool = False) -> None:
        assert not download
        if not Path(root).is_dir():
            raise RuntimeError("Dataset not found. You can use download=True to download it")
        self.pixels, self.targets, self.classes = (PIXELS if train else PIXELS[::-1]), LABELS, NAMES

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels[index]), self.targets[index]


class Splits(Pictures):
    """Of the newer ones."""

    def __init__(self, root: str, split: str = "train", transform: Any = None) -> None:
        super().__init__(root, split == "train")


@pytest.fixture
def vision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torchvision.datasets")
    module.Pictures, module.Splits = Pictures, Splits  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    monkeypatch.setenv("UNDELTA_TORCHVISION", str(tmp_path))


@pytest.mark.usefixtures("vision")
@pytest.mark.parametrize("name", ["Pictures", "Splits"])
def test_a_torchvision_source_takes_a_name_and_a_split(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset(f"torchvision:{name}")
    assert (data.classes, data.labels.tolist(), data.native_size) == (3, LABELS, 10)
    assert same(data)
    assert same(open_dataset(f"torchvision:{name}:test"), PIXELS[::-1])
    with pytest.raises(DataError, match="has no 'Nothing'"):
        open_dataset("torchvision:Nothing")
    monkeypatch.setenv("UNDELTA_TORCHVISION", "absent")
    with pytest.raises(DataError, match="download it there, or set UNDELTA_TORCHVISION"):
        open_dataset(f"torchvision:{name}")


def test_the_real_torchvision_opens_the_files_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = {"train": PIXELS[..., 0], "t10k": PIXELS[..., 1]}
    for name, images in pixels.items():
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, *images.shape) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(LABELS)) + bytes(LABELS))
    monkeypatch.setenv("UNDELTA_TORCHVISION", str(tmp_path))
    data = open_dataset("torchvision:MNIST")
    assert (data.classes, data.labels.tolist()) == (10, LABELS)
    assert same(data, pixels["train"])
    assert same(open_dataset("torchvision:MNIST:test"), pixels["t10k"])
    with pytest.raises(DataError, match="download it there, or set UNDELTA_TORCHVISION"):
        open_dataset("torchvision:CIFAR10")


def test_tensors_in_a_pytorch_file_are_a_data_set(tmp_path: Path) -> None:
    pixels, labels, path = torch.from_numpy(PIXELS.copy()), torch.tensor(LABELS), tmp_path / "own.pt"
    first = pixels.permute(0, 3, 1, 2)
    for images in (pixels, first, first / 255):
        torch.save({"images": images, "labels": labels}, path)
        assert same(open_dataset(str(path)))
    torch.save({"images": pixels[..., 0], "labels": labels}, path)
    assert same(open_dataset(str(path)), PIXELS[..., 0])
    for content, message in (
        ({"images": first * 2.5, "labels": labels}, r"floats in \[0, 1\]"),
        ({"images": first}, "tensors images and labels, got images"),
        ({"images": first, "labels": labels.float()}, "integer labels"),
        ({"images": first, "labels": labels[:2]}, "as many labels"),
        ({"images": pixels[:, :2, :2, :2], "labels": labels}, "with 1 or 3 channels"),
        (Pictures, "more than tensors"),
    ):
        torch.save(content, path)
        with pytest.raises(DataError, match=message):
            open_dataset(str(path))
