"""Recording updates while a federation runs: bounded, whole files or none, and never in the way of training.

What a framework hands over as two states and a configuration ends as an observation file, and on a client's own side
perhaps as a truth file beside it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

from undelta.client.private import Private, save_private
from undelta.errors import ConfigError, DataError
from undelta.files import make_folder, refused
from undelta.observation import Architecture, ImageSpec, Observation
from undelta.observation.assemble import Missing, count_classes, make_model, observe, training_from
from undelta.observation.consistency import consistency
from undelta.observation.file import save_observation
from undelta.schema import parse
from undelta.trials.record import describe_observation


class Recorder:
    """Writes the updates of one federation into one directory; whatever goes wrong is logged, once per reason."""

    def __init__(
        self,
        *,
        into: str | Path,
        model: str,
        image: ImageSpec | Mapping[str, object],
        model_arguments: Mapping[str, object] | None,
        most: int,
        most_bytes: int,
        log: logging.Logger,
        missing: Missing | None = None,
    ) -> None:
        self._missing = missing
        self._into, self._model, self._arguments = Path(into), model, dict(model_arguments or {})
        self._most, self._most_bytes, self._log = most, most_bytes, log
        self._image: ImageSpec | None = None
        self._said: set[str] = set()
        with self.guard():
            self._image = self._prepare(image)

    def _prepare(self, image: ImageSpec | Mapping[str, object]) -> ImageSpec:
        """Find mistakes before the first round rather than after it."""
        if self._most < 1 or self._most_bytes < 1:
            raise ConfigError(f"expected most and most_bytes >= 1, got {self._most} and {self._most_bytes}")
        if not isinstance(image, ImageSpec):
            image = parse(ImageSpec, image, where="image", error=ConfigError)
        architecture = Architecture(name=self._model, arguments=self._arguments)
        network = make_model(architecture, shape=image.shape, classes=image.classes)
        if (classes := count_classes(network, image.shape)) != image.classes:
            raise ConfigError(f"the model {self._model!r} gives {classes} logits, but image.classes is {image.classes}")
        make_folder(self._into)
        return image

    def has_room(self) -> bool:
        """Whether there is a point in handing over another update; says so if the directory is full."""
        if self._image is None:
            return False
        with self.guard():
            self._check_room(self._into / "another.safetensors", 1)
            return True
        return False

    def keep(
        self,
        name: str,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        settings: Mapping[str, object],
        num_samples: int,
        private: Private | None = None,
    ) -> Path | None:
        """Write ``name.safetensors``, and ``truth-name.safetensors`` if the client gives its images."""
        if self._image is None:
            return None
        training, unknown, notes = training_from(settings, num_samples)
        observation, more = observe(
            before,
            after,
            model=self._model,
            model_arguments=self._arguments,
            image=self._image,
            training=training,
            num_samples=num_samples,
            unknown=unknown,
            missing=self._missing,
            names=("what was sent", "what was received"),
        )
        tensors = [*observation.initial.items(), *observation.received.items()]
        if private is not None:
            if len(private) != num_samples or private.images.shape[1:] != self._image.shape:
                raise DataError(
                    f"expected the truth of {num_samples} images of shape {self._image.shape}, "
                    f"got {len(private)} of {tuple(private.images.shape[1:])}"
                )
            tensors.append(("images", private.images))
        path = self._into / f"{name}.safetensors"
        header = 4000 + sum(len(key) + 200 for key, _ in tensors)  # generously
        size = header + sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
        with self._alone():
            self._check_room(path, size)
            _write(observation, private, path)
        for note in (*notes, *more, *consistency(observation)):
            self._say(f"undelta: recorded, but note: {note}")
        return path

    def _check_room(self, path: Path, size: int) -> None:
        """Count what is there, whoever wrote it: a federation that restarts must not fill the disk."""
        replaced = (path.name, f"truth-{path.name}")
        others = [other for other in self._into.glob("*.safetensors") if other.name not in replaced]
        count = sum(not other.name.startswith("truth-") for other in others)
        if count >= self._most:
            raise ConfigError(
                f"{self._into} holds {count} updates, and most is {self._most}; raise it, or clear the folder"
            )
        if sum(other.stat().st_size for other in others) + size > self._most_bytes:
            raise ConfigError(
                f"{self._into} would grow above most_bytes, {self._most_bytes:,}; raise it, or clear the folder"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time, also among processes: clients side by side would each find the last free place."""
        with refused(f"cannot write into {self._into}", ConfigError):
            handle = os.open(self._into, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems lock no folders
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):  # a process that was forked meanwhile shares the handle and would keep the lock
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    @contextmanager
    def guard(self, failed: str = "an update is not recorded") -> Iterator[None]:
        """Whatever happens inside ends here: an audit is no reason to lose a federation's round."""
        try:
            yield
        except Exception as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            self._say(f"undelta: {failed}, training continues: {reason}")

    def _say(self, text: str) -> None:
        reason = re.sub(r"\d+", "#", text)  # another round or node is no other reason
        if reason not in self._said:
            self._said.add(reason)
            self._log.warning(text)


def _write(observation: Observation, private: Private | None, path: Path) -> None:
    """Both files or none; those of an earlier run make way when the new ones are whole."""
    truth, new = path.with_name(f"truth-{path.name}"), path.with_name(f".{path.stem}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    make_folder(new)
    try:
        save_observation(observation, new / path.name)
        if private is not None:
            save_private(private, new / truth.name, describe_observation(observation), observation)
        with refused(f"cannot write {path}", ConfigError):
            truth.unlink(missing_ok=True)  # first: an update beside the truth of another cannot be scored
            (new / path.name).replace(path)
            if private is not None:
                (new / truth.name).replace(truth)
    finally:
        shutil.rmtree(new, ignore_errors=True)
