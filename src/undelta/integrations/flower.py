"""Flower: record what a server sees of its clients, or a client of itself, during a real run; or keep updates back.

``record`` is for the server's side, one line around any Strategy; ``RecordOwn`` is a mod for a client's own audit. Both
write observation files, which `undelta attack` reads. ``GuardOwn`` is a mod that fails closed. They need Flower's
message API (`flwr.serverapp.strategy`), but import nothing of it: whoever has a strategy has Flower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.integrations.flower_guard import GuardOwn
from undelta.integrations.flower_messages import LOG, SAMPLES, Sent, arrays_of, count_of, tensors_of
from undelta.integrations.recorder import Recorder
from undelta.observation import ImageSpec
from undelta.observation.assemble import Missing, hyperparameters

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp.typing import ClientAppCallable
    from flwr.serverapp.strategy import Strategy

AnyStrategy = TypeVar("AnyStrategy", bound="Strategy")
__all__ = ["GuardOwn", "RecordOwn", "record"]

MOST = 16
MOST_BYTES = 2**30


def record(
    strategy: AnyStrategy,
    *,
    into: str | Path,
    model: str,
    image: ImageSpec | Mapping[str, object],
    training: Mapping[str, object] | None = None,
    model_arguments: Mapping[str, object] | None = None,
    clients: Collection[int] | None = None,
    rounds: Collection[int] | None = None,
    samples: str = SAMPLES,
    missing: Missing | None = None,
    most: int = MOST,
    most_bytes: int = MOST_BYTES,
) -> AnyStrategy:
    """Let the strategy write what its server sees of clients, as ``round-R-node-N.safetensors``; returns the strategy.

    It remains what it was, with all attributes, and trains as before: if recording fails, a warning says why, once per
    reason, and training continues.

    Args:
        strategy: Any Strategy of the message API.
        into: The directory for the files; it is made if it is not there.
        model: A built-in model, or ``package.module:function``, which is imported.
        image: What the model's inputs look like; an ImageSpec, or its fields.
        training: The run config, or any mapping with the clients' hyperparameters: epochs (or local-epochs),
            batch-size (or batches), learning-rate (or lr), loss, norm-mode. What a message's config says, counts more.
        model_arguments: For the model's function.
        clients: The nodes to record, by id; all by default.
        rounds: The rounds to record; all by default.
        samples: The metric in which a client reports how many images it trained on.
        missing: What parameters are that a client does not return: "frozen", or "withheld" (trained, too). Needed only
            where the model's function does not freeze them itself and ``training`` does not name those trained.
        most: Files in the directory at most.
        most_bytes: Bytes in the directory at most.
    """
    if not hasattr(strategy, "configure_train"):
        kind = f"{type(strategy).__module__}.{type(strategy).__qualname__}"
        raise ConfigError(
            f"expected a strategy of Flower's message API (flwr.serverapp.strategy), got {kind}, which has no "
            "configure_train; import the strategy from there, or save both states and use `undelta observe`"
        )
    recorder = Recorder(
        into=into,
        model=model,
        image=image,
        model_arguments=model_arguments,
        most=most,
        most_bytes=most_bytes,
        log=LOG,
        missing=missing,
    )
    sent: dict[int, Sent] = {}
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    @functools.wraps(configure)
    def configure_train(server_round: int, *words: Any, **options: Any) -> Iterable[Message]:
        messages = _listed(configure(server_round, *words, **options))
        with recorder.guard():
            sent.clear()
            if (rounds is None or server_round in rounds) and recorder.has_room():
                chosen = [message for message in messages if clients is None or message.metadata.dst_node_id in clients]
                sent.update({message.metadata.dst_node_id: Sent(message.content) for message in chosen})
        return messages

    @functools.wraps(aggregate)
    def aggregate_train(server_round: int, replies: Iterable[Message], *words: Any, **options: Any) -> Any:
        # Before the strategy sees them: some strategies clip replies in place.
        replies = _listed(replies)
        for reply in replies:
            with recorder.guard():
                node = reply.metadata.src_node_id
                if node in sent and not reply.has_error():
                    settings = hyperparameters(training or {}, sent[node].config)
                    _keep(recorder, f"round-{server_round}-node-{node}", sent[node], reply.content, settings, samples)
        sent.clear()
        return aggregate(server_round, replies, *words, **options)

    # On the instance, not around it: whatever asks for the strategy's class or attributes finds what it expects.
    strategy.configure_train = configure_train  # type: ignore[method-assign]
    strategy.aggregate_train = aggregate_train  # type: ignore[method-assign]
    return strategy


class RecordOwn:
    """A mod for a ClientApp that writes what its server sees of it, for the client's own audit.

    The file is the one that the server could write. A class, since Flower's simulation sends mods to other processes.
    Arguments are those of ``record``. Of a client's hyperparameters, the run config counts less than ``training``, the
    message's config more. ``truth`` returns the images and labels that the client trains on, for `undelta score`; they
    are written beside the update as ``truth-round-R-node-N.safetensors`` and never leave the client.
    """

    def __init__(
        self,
        *,
        into: str | Path,
        model: str,
        image: ImageSpec | Mapping[str, object],
        training: Mapping[str, object] | None = None,
        model_arguments: Mapping[str, object] | None = None,
        truth: Callable[[Context], Private] | None = None,
        rounds: Collection[int] | None = None,
        samples: str = SAMPLES,
        missing: Missing | None = None,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        # Opened when the first message comes: importing an app should cost nothing.
        self._open = functools.partial(
            Recorder,
            into=into,
            model=model,
            image=image,
            model_arguments=model_arguments,
            most=most,
            most_bytes=most_bytes,
            log=LOG,
            missing=missing,
        )
        self._training, self._truth, self._rounds = dict(training or {}), truth, rounds
        self._samples = samples
        self._recorder: Recorder | None = None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Record a training round around the rest of the app; other messages pass."""
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        recorder = self._recorder = self._recorder or self._open()
        sent: Sent | None = None
        with recorder.guard():  # before training: an app may take the arrays out of the message
            seen = Sent(message.content)
            if (self._rounds is None or seen.round in self._rounds) and recorder.has_room():
                sent = seen
        reply = call_next(message, context)
        with recorder.guard():
            if sent is not None and not reply.has_error():
                settings = hyperparameters(context.run_config, self._training, sent.config)
                private = self._truth(context) if self._truth else None
                name = f"round-{sent.round}-node-{context.node_id}"
                _keep(recorder, name, sent, reply.content, settings, self._samples, private)
        return reply


def _keep(
    recorder: Recorder,
    name: str,
    sent: Sent,
    content: RecordDict,
    settings: Mapping[str, object],
    samples: str,
    private: Private | None = None,
) -> None:
    before, after = tensors_of(sent.arrays), tensors_of(arrays_of(content, "the reply"))
    recorder.keep(name, before, after, settings=settings, num_samples=count_of(content, samples), private=private)


def _listed(messages: Iterable[Message]) -> list[Message]:
    """Looked at twice, so nothing that can be read only once."""
    return messages if isinstance(messages, list) else list(messages)
