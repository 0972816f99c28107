"""Where an attack runs, and how much memory there is."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

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


def memory_left(device: torch.device) -> int:
    """Bytes that this process can still get, as far as the system tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    page, bounds = os.sysconf("SC_PAGE_SIZE"), [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    with suppress(OSError, ValueError):  # a container's; "max" where it has none
        group = Path("/sys/fs/cgroup")
        bounds.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError):
            bounds.append(limit - int(Path("/proc/self/statm").read_text().split()[0]) * page)
    return max(0, min(bounds))
