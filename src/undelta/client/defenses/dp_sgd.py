"""DP-SGD (Abadi et al. 2016) by Opacus: gradients of single examples clipped, noise added, the privacy loss counted."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, TensorDataset

from undelta.client.defenses.checks import check_range
from undelta.client.defenses.defense import InTraining
from undelta.client.sgd import Prepare, Walk, loss_of, trained
from undelta.errors import ConfigError
from undelta.seeding import global_stream, stream
from undelta.training import LocalTraining

if TYPE_CHECKING:
    from opacus import PrivacyEngine

MISSING = 'dp_sgd needs Opacus: pip install "undelta[dp]"'


@dataclass(frozen=True, kw_only=True)
class DpSgd(InTraining):
    """Clip every example's gradient to ``norm`` and add noise of ``noise_multiplier`` times ``norm`` to their sum.

    With ``sampling = "poisson"`` each of the E·B steps takes every image with probability 1/B, which is what the
    accountant assumes; steps may be empty. With ``"shuffled"`` mini-batches are those of plain SGD; then no
    amplification by sampling is claimed: each image takes part in one step per epoch, so E steps at rate 1 count.
    Steps are divided by N/B, the expected size of a mini-batch.
    """

    noise_multiplier: float
    norm: float = 1.0
    delta: float = 1e-5
    sampling: Literal["poisson", "shuffled"] = "poisson"

    def __post_init__(self) -> None:
        if self.noise_multiplier:  # beyond these the accountant's numbers leave the range of floats
            check_range("noise_multiplier", self.noise_multiplier, low=1e-3, high=1e6)
        check_range("norm", self.norm, low=0, open_low=True)
        check_range("delta", self.delta, low=0, high=0.5, open_low=True)

    def check(self, model: nn.Module) -> None:
        """BatchNorm mixes examples, so that no gradient belongs to one alone."""
        if any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise ConfigError(
                "dp_sgd needs gradients of single examples, which BatchNorm mixes; use GroupNorm: "
                'model_arguments = { norm = "group" }'
            )
        _opacus()

    def check_training(self, training: LocalTraining) -> None:
        """Refuse what would touch gradients before each is clipped alone, or mini-batches before they are drawn."""
        given = {
            "clip_norm": training.clip_norm is not None,
            "proximal": training.proximal > 0,
            "batch_size": training.batch_size is not None,
            "flip": training.flip,
            "crop": training.crop > 0,
        }
        if any(given.values()):
            names = ", ".join(name for name, there in given.items() if there)
            raise ConfigError(f"dp_sgd cannot be combined with {names}; leave it out, and give batches")

    def walk(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        training: LocalTraining,
        *,
        seed: tuple[object, ...],
        prepare: Prepare,
    ) -> Walk:
        """Train the model in place with Opacus' optimizer on Opacus' mini-batches, or on those of plain SGD."""
        return self.accounted_walk(model, inputs, labels, training, seed=seed)[0]

    def accounted_walk(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, training: LocalTraining, *, seed: tuple[object, ...]
    ) -> tuple[Walk, PrivacyEngine]:
        """The same, and the engine with its account of the steps that were taken."""
        self.check(model)
        for module in model.modules():
            # Opacus looks at layers in train mode only; without BatchNorm nothing but dropout depends on it.
            own = any(True for _ in module.parameters(recurse=False))
            module.training = module.training or own or module is model
        self.check_training(training)
        batches, count = training.batches, len(inputs)
        optimizer, rates = _optimizer(trained(model), training), iter(training.rates)
        shuffles = stream(*seed, "shuffles")
        indices = TensorDataset(torch.arange(count))
        loader: Any = DataLoader(indices, batch_sampler=[[0]] * batches, generator=shuffles)
        orders, losses = [], []
        with _quiet(), global_stream(*seed, "dropout"):
            engine = _opacus().PrivacyEngine(accountant="rdp")
            try:
                wrapped, private, loader = engine.make_private(
                    module=model,
                    optimizer=optimizer,
                    data_loader=loader,
                    noise_multiplier=self.noise_multiplier,
                    max_grad_norm=self.norm,
                    poisson_sampling=self.sampling == "poisson",
                    noise_generator=stream(*seed, "noise"),
                )
            except (NotImplementedError, ValueError) as problem:
                raise ConfigError(f"Opacus cannot protect this model: {' '.join(str(problem).split())}") from problem
            private.expected_batch_size = count / batches  # Opacus rounds it down
            if self.sampling == "poisson":
                loader.batch_sampler.steps = batches  # likewise, for some numbers
            for _ in range(training.epochs):
                chosen = self._batches(loader, count, training, shuffles)
                orders.append(torch.cat(chosen))
                for batch in chosen:
                    private.zero_grad()
                    private.param_groups[0]["lr"] = next(rates)
                    here = batch.to(inputs.device)
                    loss = loss_of(wrapped, inputs[here], labels[here], training)
                    loss.backward()
                    private.step()
                    losses.append(float(loss.detach()))
            wrapped.remove_hooks()
        return Walk(tuple(orders), tuple(losses)), engine

    def _batches(
        self, loader: Any, count: int, training: LocalTraining, shuffles: torch.Generator
    ) -> tuple[Tensor, ...]:
        if self.sampling == "shuffled":
            order = torch.randperm(count, generator=shuffles)
            return tuple(order.split(list(training.sizes(count))))
        return tuple(torch.tensor(batch, dtype=torch.int64) for batch in loader.batch_sampler)

    def epsilon(self, training: LocalTraining, *, rounds: int) -> float | None:
        """ε at ``delta`` of a client that takes part in this many rounds; None where there is no noise, so no bound.

        By Opacus' Rényi accountant. It is about adding or removing one image, with the number of images public, and
        about the updates alone: labels that a scenario grants on top are not covered.
        """
        if self.noise_multiplier == 0:
            return None
        return _epsilon(*self.history(training, rounds=rounds), self.delta)

    def history(self, training: LocalTraining, *, rounds: int) -> tuple[float, float, int]:
        """What an accountant is told: noise multiplier, rate of sampling, number of steps."""
        epochs = rounds * training.epochs
        if self.sampling == "shuffled":
            return self.noise_multiplier, 1.0, epochs
        return self.noise_multiplier, 1 / training.batches, epochs * training.batches


def _optimizer(parameters: list[nn.Parameter], training: LocalTraining) -> torch.optim.Optimizer:
    """Any optimizer may follow: what it does to noisy gradients costs no privacy."""
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "sgd":
        momentum, nesterov = training.momentum, training.nesterov
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, betas=training.betas, eps=training.adam_epsilon, weight_decay=decay)


@functools.lru_cache(maxsize=256)  # it takes a while, and every trial of an audit asks
def _epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    accountant = _opacus().accountants.RDPAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    with warnings.catch_warnings():  # a better order of Rényi's divergence would give a smaller bound, no larger one
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta=delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Opacus' words on what is so by intention."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")  # equal seeds must give equal noise
        warnings.filterwarnings("ignore", message="Full backward hook is firing")  # inputs need no gradients
        yield


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
    except ImportError as problem:
        raise ConfigError(MISSING) from problem
    return opacus
