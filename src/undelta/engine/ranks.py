"""Several processes that share one attack (``torchrun``): every one takes its part of each mini-batch.

The gradient of a mini-batch is a sum over its samples, so gradients and Hessian terms are summed over the ranks, and
the parameter path and its adjoint are the same everywhere; image gradients are filled in by whoever has them. Nothing
here does anything in a process of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.errors import ConfigError, RankFailure


def join(device: torch.device) -> None:
    """Become one of several processes if ``torchrun`` says so: nccl on GPUs, else gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    signal.signal(signal.SIGTERM, _stopped)  # what torchrun sends to all when one of them has died


def _stopped(number: int, frame: FrameType | None) -> None:
    raise RankFailure("this run was told to stop, as another of its processes has failed")


def leave() -> None:
    """Part from the other processes in peace."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def shared() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def size() -> int:
    """How many processes share the attack."""
    return dist.get_world_size() if shared() else 1


def rank() -> int:
    """This process's number; 0 is the one that writes files."""
    return dist.get_rank() if shared() else 0


def part_of(count: int) -> slice:
    """The samples of a mini-batch that are this rank's."""
    if not shared():
        return slice(0, count)
    return slice(count * rank() // size(), count * (rank() + 1) // size())


@contextmanager
def _together() -> Iterator[None]:
    """A collective: it fails if another process does not take part any more."""
    try:
        yield
    except RuntimeError as problem:
        reason = str(problem).partition("\n")[0]
        raise RankFailure(f"lost touch with another of this run's processes ({reason})") from problem


def sum_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Sum every tensor over all ranks, in place, in one message."""
    if not shared():
        return
    tensors = list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    with _together():
        dist.all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def same_bytes(content: bytes) -> bytes:
    """What rank 0 has, for everybody."""
    if not shared():
        return content
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    length = torch.tensor([len(content)], device=device)
    with _together():
        dist.broadcast(length, 0)
        buffer = torch.zeros(int(length), dtype=torch.uint8, device=device)
        if rank() == 0 and content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(buffer, 0)
    return bytes(buffer.cpu().numpy())


class SharedBatchNorm(_BatchNorm):
    """BatchNorm over a mini-batch that is spread over the ranks, differentiable as often as you like."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(norm.num_features, norm.eps, affine=False, track_running_stats=False)
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """γ x̂ + β over the statistics of all ranks' inputs."""
        inputs = input
        axes = [axis for axis in range(inputs.dim()) if axis != 1]
        shape = [1, -1, *[1] * (inputs.dim() - 2)]
        count = inputs.new_tensor([inputs.numel() / inputs.shape[1]])
        sum_over_ranks([count])
        if int(count) == 1:
            raise ConfigError("BatchNorm over one value per channel has no statistics; use fewer batches")
        mean = (_sum(inputs.sum(axes)) / count).view(shape)
        centered = inputs - mean
        variance = (_sum(centered.square().sum(axes)) / count).view(shape)
        normal = centered * (variance + self.eps).rsqrt()
        for parameter, put in ((self.weight, torch.mul), (self.bias, torch.add)):
            if isinstance(parameter, Tensor):  # None without affine
                normal = put(normal, parameter.view(shape))
        return normal


class _Sum(torch.autograd.Function):
    """The sum over all ranks; its adjoint is the same sum, and so on."""

    @staticmethod
    def forward(context: object, values: Tensor) -> Tensor:
        total = values.clone()
        sum_over_ranks([total])
        return total

    @staticmethod
    def backward(context: object, *adjoints: Tensor) -> Tensor:
        return _sum(adjoints[0])


def _sum(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


def share_statistics(model: nn.Module) -> bool:
    """Let every BatchNorm that uses its batch's statistics take them over all ranks; whether there was one."""
    made: dict[nn.Module, SharedBatchNorm] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm) and (child.training or child.running_mean is None):
                made.setdefault(child, SharedBatchNorm(child))
                setattr(parent, name, made[child])
    return bool(made)
