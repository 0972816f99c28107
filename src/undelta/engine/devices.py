"""Where an attack runs."""

from __future__ import annotations

import os

import torch

from undelta.errors import ConfigError


def device_of(name: str) -> torch.device:
    """A device by its name; "auto" is this process's GPU where there is one, else the CPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and not gpus:
        return torch.device("cpu")
    if name in ("auto", "cuda") and gpus:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"expected a device such as auto, cpu, cuda or cuda:1, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"expected a device of type cpu or cuda, got {name!r}; other kinds are not tested")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(f"the device {name!r} is not there: this machine has {gpus} CUDA devices; use --device auto")
    return device
