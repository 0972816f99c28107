"""The study: one evaluation per place in line, by any number of workers, in a database.

**Exactly as many as asked.** The places (slots) are waiting trials of the Optuna study, made before the work. A worker
takes one by turning it from waiting to running, which the database grants once. Two commands that begin at the same
moment may both make trials for a place; so a worker looks again after taking one, and withdraws if another trial of
that place runs or is finished. Of two that took one each, the second sees the first: never do both continue.

**Nothing is lost.** Optuna's heartbeat says which running trials have no living worker. A trial of a dead worker is
marked as failed, and a copy of it waits again, with its point and what it had reported. Failed trials count for
nothing. A worker that wakes up after it was given up finds that it cannot finish its trial, and leaves it alone.

Where Optuna falls short: its retry is lost if the one who fails a trial dies before adding the copy, so places are
counted instead; its workers evaluate more than asked if several ask at once; and a heartbeat takes two minutes to be
missed, so a process that died on this machine is recognized by its number.

It is a plain Optuna study: `optuna.load_study` and optuna-dashboard read it as it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from undelta.errors import DataError
from undelta.schema import parse
from undelta.studies.tuning.objective import Direction
from undelta.studies.tuning.proposals import AGAIN, SLOT, Proposals
from undelta.studies.tuning.storage import as_experimental
from undelta.trials.leases import Owner, is_gone, myself

OWNER = "owner"
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)

_held: set[str] = set()
"""Tokens of the trials that this process runs; any other trial in its name is a leftover."""


class TrialLost(Exception):
    """Others took the worker for dead and repeat its trial; its result is not wanted."""


def make_pruner(*, prune: bool, random: int, warmup: int) -> BasePruner:
    """Ends a trial that is worse than the median of the completed ones at the same step; random ones never ask it."""
    return MedianPruner(n_startup_trials=max(random, 1), n_warmup_steps=warmup) if prune else NopPruner()


def open_study(
    storage: RDBStorage, name: str, *, sampler: Proposals, pruner: BasePruner, direction: Direction
) -> optuna.Study:
    """The study of that name, made if it is not there."""
    with contextlib.suppress(KeyError):
        return optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=pruner)
    return optuna.create_study(
        study_name=name, storage=storage, sampler=sampler, pruner=pruner, direction=direction, load_if_exists=True
    )


class Slots:
    """The places in line of a study, as one worker sees them."""

    def __init__(self, study: optuna.Study, storage: RDBStorage, *, total: int, worker: str) -> None:
        self.study, self.storage, self.total, self.worker = study, storage, total, worker
        self._study_id = storage.get_study_id_from_name(study.study_name)
        assert isinstance(study.sampler, Proposals)  # noqa: S101
        self._space = set(study.sampler.space)

    def finished(self) -> list[FrozenTrial]:
        """The results in order; of several for one place, the first."""
        found: dict[int, FrozenTrial] = {}
        for trial in self._trials():
            if trial.state in FINISHED:
                found.setdefault(slot_of(trial), trial)
        return [found[slot] for slot in sorted(found) if slot < self.total]

    def running(self) -> dict[int, Owner]:
        """Who works on which place."""
        owners = {slot_of(trial): _owner(trial) for trial in self._trials() if trial.state == TrialState.RUNNING}
        return {slot: owner for slot, owner in owners.items() if owner and slot < self.total}

    def waiting(self) -> list[FrozenTrial]:
        """The places that wait for a worker, in order; those of dead workers do again."""
        self._repair()
        waiting = [trial for trial in self._trials() if trial.state == TrialState.WAITING]
        return sorted((one for one in waiting if slot_of(one) < self.total), key=lambda one: (slot_of(one), one.number))

    def take(self) -> Running | None:
        """The next trial that nobody works on, or None."""
        while waiting := self.waiting():
            if (running := self._begin(waiting[0])) is not None:
                return running
        return None

    def _begin(self, trial: FrozenTrial) -> Running | None:
        identity, slot = self._identity(trial), slot_of(trial)
        owner = myself(self.worker)
        try:
            self.storage.record_heartbeat(identity)  # first: a running trial without one never counts as dead
            if not self.storage.set_trial_state_values(identity, state=TrialState.RUNNING):
                return None
            _held.add(owner.token)
            self.storage.set_trial_user_attr(identity, OWNER, asdict(owner))
        except UpdateFinishedTrialError:  # somebody took it, and was quick; or withdrew it, as one too many
            _held.discard(owner.token)
            return None
        busy = (*FINISHED, TrialState.RUNNING)
        if any(
            slot_of(other) == slot and other.number != trial.number and other.state in busy for other in self._trials()
        ):
            self._fail(trial)
            _held.discard(owner.token)
            return None
        try:
            return Running(self.study, self.storage, identity, slot, owner.token)  # which proposes its point
        except BaseException:
            self._fail(trial)
            _held.discard(owner.token)
            raise

    def _fail(self, trial: FrozenTrial) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):  # somebody else was faster
            self.storage.set_trial_state_values(self._identity(trial), state=TrialState.FAIL)

    def _repair(self) -> None:
        """See that every place without a result has one trial that waits or runs."""
        with as_experimental():
            fail_stale_trials(self.study)
        for trial in self._trials():
            if trial.state == TrialState.RUNNING and (owner := _owner(trial)) and is_gone(owner, _held):
                self._fail(trial)
        trials = self._trials()
        taken: set[int] = set()
        for state in (*FINISHED, TrialState.RUNNING, TrialState.WAITING):
            for trial in trials:
                if trial.state != state:
                    continue
                if state == TrialState.WAITING and slot_of(trial) in taken:  # two who began at once both made it
                    self._fail(trial)
                taken.add(slot_of(trial))
        for slot in range(self.total):
            if slot not in taken:
                # One that died while its point was written down has no whole point, and had not begun.
                begun = [trial for trial in trials if slot_of(trial) == slot and self._space <= set(trial.params)]
                self.study.add_trial(_waiting(slot, begun))

    def _trials(self) -> list[FrozenTrial]:
        # Whoever adds trials to the study by hand gives them no place in line.
        return [trial for trial in self.study.get_trials(deepcopy=False) if SLOT in trial.user_attrs]

    def _identity(self, trial: FrozenTrial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)


def slot_of(trial: FrozenTrial) -> int:
    """A trial's place in line."""
    return int(trial.user_attrs[SLOT])


def _owner(trial: FrozenTrial) -> Owner | None:
    with contextlib.suppress(DataError):
        return parse(Owner, trial.user_attrs.get(OWNER), where="owner", error=DataError)
    return None


def _waiting(slot: int, begun: Sequence[FrozenTrial]) -> FrozenTrial:
    """A trial for this place; where one died, with its point and its reports, so that nothing changes by its death."""
    attributes: dict[str, Any] = {SLOT: slot}
    reports: dict[int, float] = {}
    for trial in begun:
        attributes[AGAIN] = dict(trial.params)
        reports |= trial.intermediate_values
    return create_trial(state=TrialState.WAITING, user_attrs=attributes, intermediate_values=reports)


class Running:
    """A trial that is ours; use it as a context, which keeps its heart beating."""

    def __init__(self, study: optuna.Study, storage: RDBStorage, identity: int, slot: int, token: str) -> None:
        self.study, self.storage, self.identity, self.slot, self.token = study, storage, identity, slot, token
        assert isinstance(study.sampler, Proposals)  # noqa: S101
        self._space, self._random = study.sampler.space, slot < study.sampler.random
        self.trial = Trial(study, identity)
        self.lost = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._reported = set(storage.get_trial(identity).intermediate_values)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if kind is not None:  # give it back, so that nobody has to wait until we count as dead
            self._end(TrialState.FAIL)
        _held.discard(self.token)

    def _beat(self) -> None:
        while not self._done.wait(self.storage.heartbeat_interval):
            # The database is away for a moment; Optuna wraps some of its errors.
            with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError, StorageInternalError):
                if self.storage.get_trial(self.identity).state.is_finished():
                    self.lost = True
                    return
                self.storage.record_heartbeat(self.identity)

    def point(self) -> dict[str, float]:
        """Where in the search space this trial is."""
        point: dict[str, float] = {}
        for name, side in self._space.items():
            assert isinstance(side, optuna.distributions.FloatDistribution)  # noqa: S101
            point[name] = self.trial.suggest_float(name, side.low, side.high, log=side.log)
        return point

    def report(self, step: int, value: float) -> None:
        """Note a value on the way; raises `optuna.TrialPruned` if the trial is hopeless, and not a random one."""
        self.check()
        if step not in self._reported:  # a resumed attack goes over some ground again
            self._reported.add(step)
            self.trial.report(value, step)
        # Beside other workers a random trial may be the last to end; the pruner would then compare it.
        if not self._random and self.trial.should_prune():
            raise optuna.TrialPruned

    def check(self) -> None:
        """Raise `TrialLost` unless the trial is still ours."""
        if self.lost:
            raise TrialLost

    def complete(self, value: float) -> None:
        """Note the result."""
        if not self._end(TrialState.COMPLETE, [value]):
            raise TrialLost

    def prune(self, attribute: str | None = None) -> None:
        """Note that there is no result, but the last report; an attribute says why, if it was not pruned."""
        if attribute:
            self.trial.set_user_attr(attribute, True)
        reports = self.storage.get_trial(self.identity).intermediate_values
        if not self._end(TrialState.PRUNED, [reports[max(reports)]] if reports else None):
            raise TrialLost

    def _end(self, state: TrialState, values: list[float] | None = None) -> bool:
        try:
            self.storage.set_trial_state_values(self.identity, state, values)
        except UpdateFinishedTrialError:
            return False
        return True
