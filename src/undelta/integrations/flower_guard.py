"""Flower: a client mod that keeps an update back if it reveals too much, or on any doubt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.integrations.flower_messages import LOG, SAMPLES, Sent, count_of, tensors_of
from undelta.integrations.guard import WITHHELD, Guard, is_small
from undelta.observation import ImageSpec
from undelta.observation.assemble import Missing, hyperparameters

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp.typing import ClientAppCallable

REFUSED = 451  # the error's code; Flower's own are small


class GuardOwn:
    """A mod for a ClientApp that attacks an update before it is sent, and answers with an error if it reveals too much.

    It fails closed: whatever keeps it from measuring an update keeps the update, too. Other replies that carry arrays,
    and metrics or configurations that an image would fit into, do not leave either. Arguments are those of
    ``RecordOwn``, and

    Args:
        attack: Its name.
        arguments: Its settings, such as ``{"steps": 200}``; every update costs one attack.
        fail_above: Bounds such as ``{"ssim": 0.3}`` on the most exposed image; they need ``truth``. Without bounds an
            update stays if an image can be recognized, or without ``truth``, if the found images explain the update.
        fail_below: Likewise, for metrics that fall with quality.
        seed: Of the attack.
    """

    def __init__(
        self,
        *,
        model: str,
        image: ImageSpec | Mapping[str, object],
        training: Mapping[str, object] | None = None,
        model_arguments: Mapping[str, object] | None = None,
        truth: Callable[[Context], Private] | None = None,
        samples: str = SAMPLES,
        missing: Missing | None = None,
        attack: str = "strongest",
        arguments: Mapping[str, Any] | None = None,
        fail_above: Mapping[str, float] | None = None,
        fail_below: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self._guard = Guard(
            model=model,
            image=image,
            model_arguments=model_arguments,
            missing=missing,
            attack=attack,
            arguments=arguments,
            fail_above=fail_above,
            fail_below=fail_below,
            seed=seed,
            with_truth=truth is not None,
            log=LOG,
        )
        self._training, self._truth, self._samples = dict(training or {}), truth, samples

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Measure a training round's update; let it go, or answer with an error."""
        trains = message.metadata.message_type.partition(".")[0] == "train"
        name = f"{message.metadata.message_type} of node {context.node_id}"
        try:
            sent = Sent(message.content) if trains else None  # before training: an app may take the arrays out
        except Exception as problem:  # any: what cannot be measured must not leave
            return self._refuse(message, name, problem)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        try:
            stays = self._stays(name, sent, reply.content, context)
        except Exception as problem:
            return self._refuse(message, name, problem)
        return self._refuse(message, name) if stays else reply

    def _refuse(self, message: Message, name: str, problem: Exception | None = None) -> Message:
        from flwr.app import Error

        if problem is not None:
            self._guard.blocks(name, problem)
        return type(message)(Error(REFUSED, WITHHELD), reply_to=message)

    def _stays(self, name: str, sent: Sent | None, content: RecordDict, context: Context) -> bool:
        metrics = [list(record.items()) for record in content.metric_records.values()]
        if not is_small([*metrics, *(list(record.items()) for record in content.config_records.values())]):
            raise ConfigError("expected a few numbers and words beside arrays, got more, which is not looked at")
        records = [record for record in content.array_records.values() if record]
        if sent is None:
            if records:
                raise ConfigError("expected arrays in replies to train messages only; this one is not looked at")
            return False
        if len(records) != 1:
            raise ConfigError(f"expected one record of arrays, which is measured, got {len(records)}")
        settings = hyperparameters(context.run_config, self._training, sent.config)
        return self._guard.stays(
            name,
            tensors_of(sent.arrays),
            tensors_of(records[0]),
            settings=settings,
            num_samples=count_of(content, self._samples),
            private=self._truth(context) if self._truth else None,
        )
