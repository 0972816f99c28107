"""NVFlare: filters of a site that record what its server sees of it, or keep updates back.

They belong into the site's own ``local/privacy.json``, where no job can leave them out: `KeepSent` among the task data
filters, and `RecordUpdate` or `GuardUpdate` among the task result filters. Their arguments are plain JSON values.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.integrations.aside import Audits
from undelta.integrations.guard import WITHHELD, Guard, is_small
from undelta.integrations.recorder import Recorder
from undelta.observation.assemble import Missing, hyperparameters
from undelta.schema import import_part

LOG = logging.getLogger("nvflare.undelta")  # below NVFlare's own, so that it is shown where NVFlare's is
SENT = "__undelta_sent__"
UNAUDITED = "recorded updates are not audited"
WEIGHTS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]


class KeepSent(DXOFilter):  # type: ignore[misc,unused-ignore]
    """Among the task data filters: keeps a copy of the weights that the site is sent, until the task is done."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS], data_kinds_to_filter=None)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Copy, since training may work in place; the DXO passes as it is."""
        try:
            kept = {
                "weights": {name: _tensor(name, value).clone() for name, value in dxo.data.items()},
                "meta": {key: value for key, value in (dxo.meta or {}).items() if isinstance(key, str)},
                "round": shareable.get_header(AppConstants.CURRENT_ROUND, 0),
            }
        except Exception as problem:  # any: training begins all the same; the filter of its result will miss this
            LOG.warning(f"undelta: what this site was sent is not kept: {problem}")
            return
        fl_ctx.set_prop(SENT, kept, private=True, sticky=False)


class _Update:
    """A result of a site's training, as `observe` wants it."""

    def __init__(self, dxo: DXO, fl_ctx: FLContext, training: Mapping[str, object], samples: str | int) -> None:
        sent = fl_ctx.get_prop(SENT)
        if sent is None:
            raise ConfigError(
                "expected the weights that the site was sent, got none; put undelta.integrations.nvflare.KeepSent "
                "among the task_data_filters of the same scope"
            )
        self.before: dict[str, Tensor] = sent["weights"]
        found = {name: _tensor(name, value) for name, value in dxo.data.items()}
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            strange = sorted(found.keys() - self.before.keys())
            if strange:
                raise ConfigError(f"expected differences of the weights that were sent, got {strange[0]!r} besides")
            found = {name: self.before[name] + value for name, value in found.items()}
        self.after = found
        meta = {key: value for key, value in (dxo.meta or {}).items() if isinstance(key, str)}
        self.settings = hyperparameters(training, sent["meta"], meta)
        count = samples if isinstance(samples, int) else meta.get(samples)
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ConfigError(
                f"expected how many images were trained on in the result's meta {samples!r}, got {count!r}; name "
                "another key, or give the number itself (samples)"
            )
        self.num_samples = int(count)
        site = re.sub(r"[^\w.-]", "_", str(fl_ctx.get_identity_name()))
        job = re.sub(r"[^\w.-]", "_", str(fl_ctx.get_job_id()))
        self.name = f"{job}-round-{sent['round']}-{site}"


class RecordUpdate(DXOFilter):  # type: ignore[misc,unused-ignore]
    """Among the task result filters: writes what the server sees of this site, and is never in the way of training.

    Args:
        into: The directory for the files, ``JOB-round-R-SITE.safetensors``; it is made if it is not there.
        model: A built-in model, or ``package.module:function``, which is imported.
        image: The fields of an ImageSpec: shape, mean, std, classes.
        training: The site's hyperparameters: epochs, batch_size, learning_rate and so on. What the meta of the task
            and of the result say, counts more.
        samples: How many images the site trains on, or the key of the result's meta that says it.
        model_arguments: For the model's function.
        truth: ``package.module:function``, called without arguments for the site's own images, a `Private`; they are
            written beside the update, for `undelta score`.
        missing: What parameters are that the site does not return: "frozen", or "withheld".
        rounds: The rounds to record; all by default.
        most: Files in the directory at most.
        most_bytes: Bytes in the directory at most.
        audit: Audit recorded updates in a process of low priority, one at a time: ``{"attack": "strongest",
            "arguments": {"steps": 200}, "seconds": 3600}``, all of which have defaults. Updates that come while an
            audit is under way are recorded and not audited. Results are in ``audits/JOB-round-R-SITE``.
    """

    def __init__(
        self,
        into: str,
        model: str,
        image: Mapping[str, object],
        training: Mapping[str, object] | None = None,
        samples: str | int = "num_samples",
        model_arguments: Mapping[str, object] | None = None,
        truth: str | None = None,
        missing: Missing | None = None,
        rounds: Collection[int] | None = None,
        most: int = 16,
        most_bytes: int = 2**30,
        audit: Mapping[str, Any] | None = None,
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        super().__init__(supported_data_kinds=WEIGHTS, data_kinds_to_filter=WEIGHTS)
        self._recorder = Recorder(
            into=Path(into),
            model=model,
            image=image,
            model_arguments=model_arguments,
            most=most,
            most_bytes=most_bytes,
            log=LOG,
            missing=missing,
        )
        self._training, self._samples, self._truth, self._rounds = dict(training or {}), samples, truth, rounds
        self._audits: Audits | None = None
        if audit is not None:
            with self._recorder.guard(UNAUDITED):
                self._audits = Audits(Path(into), model, audit, LOG)
        _remember(self, given)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Record; the DXO passes as it is, whatever happens."""
        path = None
        with self._recorder.guard():
            sent = fl_ctx.get_prop(SENT) or {}
            if self._rounds is not None and sent.get("round") not in self._rounds:
                return
            if self._recorder.has_room():
                update = _Update(dxo, fl_ctx, self._training, self._samples)
                path = self._recorder.keep(
                    update.name,
                    update.before,
                    update.after,
                    settings=update.settings,
                    num_samples=update.num_samples,
                    private=_truth(self._truth)() if self._truth else None,
                )
        if self._audits is not None and path is not None:
            with self._recorder.guard(UNAUDITED):
                self._audits.start(path)


class GuardUpdate(Filter):  # type: ignore[misc,unused-ignore]
    """Among the task result filters: attacks an update before it is sent, and blocks it if it reveals too much.

    It fails closed: what cannot be measured is blocked, and so is every other result that holds more than plain numbers
    and text, unless ``passing`` names its kind. Arguments are those of `RecordUpdate`, and

    Args:
        attack: Its name.
        arguments: Its settings, such as ``{"steps": 200}``; every update costs one attack.
        fail_above: Bounds such as ``{"ssim": 0.3}`` on the most exposed image; they need ``truth``. Without bounds an
            update is blocked if an image can be recognized, or without ``truth``, if the found images explain it.
        fail_below: Likewise, for metrics that fall with quality.
        seed: Of the attack.
        passing: Kinds of other results that may leave without a look, such as "STATISTICS".
    """

    def __init__(
        self,
        model: str,
        image: Mapping[str, object],
        training: Mapping[str, object] | None = None,
        samples: str | int = "num_samples",
        model_arguments: Mapping[str, object] | None = None,
        truth: str | None = None,
        missing: Missing | None = None,
        attack: str = "strongest",
        arguments: Mapping[str, Any] | None = None,
        fail_above: Mapping[str, float] | None = None,
        fail_below: Mapping[str, float] | None = None,
        seed: int = 0,
        passing: Collection[str] = (),
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        super().__init__()
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
        self._training, self._samples, self._truth = dict(training or {}), samples, truth
        self._passing = tuple(passing)
        _remember(self, given)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The shareable as it is, or ContentBlockedException, at which NVFlare answers with an error code."""
        try:
            stays = self._stays(shareable, fl_ctx)
        except Exception as problem:  # any: what cannot be measured must not leave
            self._guard.blocks("a result", problem)
            stays = True
        if stays:
            raise ContentBlockedException(WITHHELD)
        return shareable

    def _stays(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        encoded = shareable.get("DXO")
        beside = {key: value for key, value in shareable.items() if key != "DXO"}  # with the headers
        if isinstance(encoded, dict):
            beside["DXO"] = {key: value for key, value in encoded.items() if key != "data"}  # with the meta
        if not is_small(beside):
            raise ConfigError(
                "expected a few numbers and words beside the data of a result, as its headers and meta, got more, "
                f"which is not looked at (in {', '.join(map(str, beside))})"
            )
        if "DXO" not in shareable or shareable.get_return_code() != ReturnCode.OK:
            return "DXO" in shareable
        dxo = from_shareable(shareable)
        if dxo.data_kind not in WEIGHTS:
            if dxo.data_kind not in self._passing and not is_small(dxo.data):
                raise ConfigError(f"expected weights, or numbers and text, got a result of kind {dxo.data_kind}")
            return False
        update = _Update(dxo, fl_ctx, self._training, self._samples)
        return self._guard.stays(
            update.name,
            update.before,
            update.after,
            settings=update.settings,
            num_samples=update.num_samples,
            private=_truth(self._truth)() if self._truth else None,
        )


def _remember(component: Filter, given: Mapping[str, object]) -> None:
    """NVFlare's job API reads a component's arguments off its attributes, to write them into a job's configuration."""
    for key, value in given.items():
        if not hasattr(component, f"_{key}"):
            setattr(component, f"_{key}", value)


def _truth(name: str) -> Callable[[], Private]:
    return import_part(name, "truth")


def _tensor(name: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"expected plain numbers for {name!r}, got {type(value).__name__}")
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).copy())
