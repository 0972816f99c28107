"""Data sets stored as arrays: .npz, idx and CIFAR's binary version, sound and unsound."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from undelta.client.datasets import open_dataset
from undelta.errors import DataError

pytestmark = pytest.mark.usefixtures("bounded_memory")


def random_images(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return header + array.tobytes()


def write_idx(folder: Path, split: str, images: npt.NDArray[np.uint8], labels: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(np.array(labels, dtype=np.uint8)))


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 8, 8, 1), (2, 8, 8, 3), (2, 32, 32, 3), (2, 6, 8, 3)])
def test_npz_round_trip(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = random_images(*shape)
    np.savez(tmp_path / "data.npz", images=images, labels=np.array([4, 0]))
    data = open_dataset(str(tmp_path / "data.npz"))
    channels = shape[3] if len(shape) == 4 else 1
    assert (data.labels.tolist(), data.classes, data.channels) == ([4, 0], 5, channels)
    assert data.native_size == (shape[1] if shape[1] == shape[2] else None)
    assert data.mean[0] == {1: 0.5, 3: 0.4914 if shape[1] == 32 else 0.485}[channels]
    assert data.draw([1, 0], 13).shape == (2, channels, 13, 13)
    if data.native_size:
        expected = torch.from_numpy(images.reshape(*shape[:3], -1)).permute(0, 3, 1, 2) / 255
        assert torch.equal(data.draw([0, 1], data.native_size), expected)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": random_images(2, 4, 4)}, "expected arrays images and labels"),
        ({"images": random_images(2, 4, 4), "labels": np.zeros(3, int)}, "as many labels"),
        ({"images": random_images(0, 4, 4), "labels": np.zeros(0, int)}, "uint8 and shape"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(2, int)}, "got float64"),
        ({"images": random_images(2, 4, 4, 2), "labels": np.zeros(2, int)}, r"\(2, 4, 4, 2\)"),
        ({"images": random_images(2, 4, 4), "labels": np.zeros(2)}, "integer labels"),
        ({"images": random_images(2, 4, 4), "labels": np.zeros((2, 1), int)}, "integer labels"),
        ({"images": random_images(2, 4, 4), "labels": np.array([0, -1])}, "labels from 0"),
        ({"images": random_images(2, 4, 4), "labels": np.array([0, 10**9])}, "labels from 0"),
    ],
)
def test_an_unsound_npz_is_refused(tmp_path: Path, arrays: dict[str, npt.NDArray[np.uint8]], message: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]  # also matches allow_pickle
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path / "data.npz"))


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return pytest.fail, ("a pickle was opened",)


@pytest.mark.parametrize("header", ["{'descr': (", "{'descr': '|u1' 'shape'", "{'descr' '"])
def test_an_array_with_a_damaged_header_is_refused(tmp_path: Path, header: str) -> None:
    text = header.encode().ljust(118)
    member = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in ("images.npy", "labels.npy"):
            archive.writestr(name, member)
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        open_dataset(str(tmp_path / "data.npz"))


def test_members_that_are_no_arrays_are_refused_and_others_left_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("images", b"no array")
        archive.writestr("labels", b"no array")
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        open_dataset(str(tmp_path / "data.npz"))
    np.savez(tmp_path / "more.npz", images=random_images(2, 4, 4), labels=np.zeros(2, int), names=np.array(["a", "b"]))
    assert len(open_dataset(str(tmp_path / "more.npz"))) == 2


@pytest.mark.parametrize("name", ["bomb.npz", "train-images-idx3-ubyte.gz"])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, name: str) -> None:
    write_idx(tmp_path, "train", random_images(1, 4, 4), [1])
    (tmp_path / "train-images-idx3-ubyte").unlink()
    if name.endswith("gz"):
        with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
            file.write(struct.pack(">4I", 0x0803, 200, 1024, 1024) + bytes(200 * 2**20))
    else:
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for member in ("images.npy", "labels.npy"):
                archive.writestr(member, bytes(60 * 2**20))
    with pytest.raises(DataError, match="bytes unpack to"):
        open_dataset(str(tmp_path if name.endswith("gz") else tmp_path / name))


def test_a_pipe_that_poses_as_an_npz_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.npz")
    with pytest.raises(DataError, match=r"neither a folder nor an \.npz, \.pt or \.parquet file"):
        open_dataset(str(tmp_path / "data.npz"))


def test_pickles_inside_or_posing_as_npz_are_not_opened(tmp_path: Path) -> None:
    objects = np.empty(1, dtype=object)
    objects[0] = Bomb()
    np.savez(tmp_path / "data.npz", images=objects, labels=objects)
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Bomb()))
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "plain.npy").rename(tmp_path / "plain.npz")
    for name in ("data.npz", "raw.npz", "plain.npz"):
        with pytest.raises(DataError, match=r"not a readable \.npz file"):
            open_dataset(str(tmp_path / name))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_a_data_error_at_worst(tmp_path: Path, position: float, value: int, cut: bool) -> None:
    np.savez_compressed(tmp_path / "data.npz", images=random_images(2, 5, 5), labels=np.arange(2))
    (tmp_path / "pictures").mkdir(exist_ok=True)
    Image.fromarray(random_images(6, 6, 3)).save(tmp_path / "pictures" / "a.png")
    Image.fromarray(random_images(6, 6, 3)).save(tmp_path / "pictures" / "b.jpg")
    for name in ("data.npz", "pictures/a.png", "pictures/b.jpg"):
        content = bytearray((tmp_path / name).read_bytes())
        place = int(position * len(content))
        content[place] = value
        (tmp_path / name).write_bytes(content[:place] if cut else content)
    for name in ("data.npz", "pictures"):
        for index in range(2):
            try:
                open_dataset(str(tmp_path / name)).draw([index], 5)
            except DataError as error:
                assert "\n" not in str(error)  # noqa: PT017 (either outcome is fine; only the message is checked)


@pytest.mark.parametrize("nested", ["", "MNIST/raw", "mnist"])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_found_in_a_root_and_unzipped(tmp_path: Path, nested: str, zipped: bool) -> None:
    images = random_images(3, 28, 28)
    folder = tmp_path / nested
    write_idx(folder, "train", images, [7, 0, 9])
    write_idx(folder, "t10k", images[:1], [1])
    if zipped:
        for path in list(folder.glob("train-images*")):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    data = open_dataset(str(tmp_path))
    assert data.labels.tolist() == [7, 0, 9], "the training set wins over t10k"
    assert (data.classes, data.channels, data.native_size, data.mean) == (10, 1, 28, (0.1307,))
    assert torch.equal(data.draw([2], 28)[0, 0], torch.from_numpy(images[2]) / 255)


def test_fashion_mnist_has_its_own_constants(tmp_path: Path) -> None:
    write_idx(tmp_path / "FashionMNIST" / "raw", "t10k", random_images(1, 28, 28), [1])
    data = open_dataset(str(tmp_path / "FashionMNIST"))
    assert (data.mean, data.std, data.name) == ((0.2860,), (0.3530,), "FashionMNIST")
    write_idx(tmp_path / "MNIST" / "raw", "t10k", random_images(1, 28, 28), [1])
    with pytest.raises(DataError, match="several data sets"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header"),
        (b"\0\0\x08\x01\0\0\0\1\0", "header"),
        (idx(random_images(1, 4, 4))[:-1], "expected 16 values, got 15"),
        (idx(random_images(1, 4, 4)) + b"x", "expected 16 values, got more"),
        (struct.pack(">4I", 0x0803, 2**31, 2**31, 2**31), "16 bytes unpack to 9,903,520,314,283,042,199,192,993,792"),
        (struct.pack(">4I", 0x0803, 0, 4, 4), "claims the shape"),
        (idx(random_images(2, 4, 4)), "as many labels"),
    ],
)
def test_an_unsound_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    write_idx(tmp_path, "train", random_images(1, 4, 4), [1])
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path))


def test_idx_images_need_labels_and_a_sound_gzip(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(random_images(1, 4, 4)))[:-9])
    with pytest.raises(DataError, match="not its labels"):
        open_dataset(str(tmp_path))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(1, np.uint8)))
    with pytest.raises(DataError, match="as an idx file"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize("nested", ["", "cifar-10-batches-bin"])
def test_cifar_10_is_read_from_its_binary_version(tmp_path: Path, nested: str) -> None:
    folder = tmp_path / nested
    folder.mkdir(exist_ok=True)
    images = random_images(2, 3, 32, 32)
    for number, (label, image) in enumerate(zip([9, 2], images, strict=True), start=1):
        (folder / f"data_batch_{number}.bin").write_bytes(bytes([label]) + image.tobytes())
    data = open_dataset(str(tmp_path))
    assert (data.labels.tolist(), data.classes, data.native_size) == ([9, 2], 10, 32)
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert torch.equal(data.draw([0, 1], 32), torch.from_numpy(images) / 255)


def test_cifar_100_counts_fine_labels(tmp_path: Path) -> None:
    images = random_images(1, 3, 32, 32)
    (tmp_path / "test.bin").write_bytes(bytes([19, 99]) + images.tobytes())
    data = open_dataset(str(tmp_path))
    assert (data.labels.tolist(), data.classes, data.mean[0]) == ([99], 100, 0.5071)
    assert torch.equal(data.draw([0], 32), torch.from_numpy(images) / 255)


def test_unsound_cifar_files_are_refused(tmp_path: Path) -> None:
    for content, message in ((b"", "records of 3073"), (b"\0" * 3000, "3073"), (b"\x0a" * 3073, "below 10")):
        (tmp_path / "test_batch.bin").write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_dataset(str(tmp_path))


@pytest.mark.parametrize("names", [["data_batch_1"], ["train", "test", "meta"]])
def test_pickled_cifar_is_refused_with_advice(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "cifar-python").mkdir()
    for name in names:
        (tmp_path / "cifar-python" / name).write_bytes(pickle.dumps(Bomb()))
    for folder in (tmp_path, tmp_path / "cifar-python"):
        with pytest.raises(DataError, match=r"can run code; use CIFAR's binary version, or an \.npz with images"):
            open_dataset(str(folder))
