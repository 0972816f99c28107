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
from typing import Any, Self

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import MedianPruner, NopPruner
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from undelta.errors import DatabaseAway, DataError
from undelta.schema import parse
from undelta.studies.tuning.plan import Direction
from undelta.studies.tuning.proposals import AGAIN, SLOT, Proposals, placed_trials, slot_of
from undelta.studies.tuning.storage import as_experimental
from undelta.trials.leases import Owner, is_gone, myself

OWNER = "owner"
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)

_held: set[str] = set()
"""Tokens of the trials that this process runs; any other trial in its name is a leftover."""


class TrialLost(Exception):
    """Others took the worker for dead and repeat its trial; its result is not wanted."""


class Slots:
    """The places in line of a study, as one worker sees them; the study is made if it is not there."""

    def __init__(
        self,
        storage: RDBStorage,
        proposals: Proposals,
        *,
        name: str,
        direction: Direction,
        prune: bool,
        warmup: int,
        total: int,
        worker: str,
    ) -> None:
        self.storage, self.proposals, self.total, self.worker = storage, proposals, total, worker
        # Ends a trial that is worse than the median of the completed ones at the same step; random ones never ask it.
        median = MedianPruner(n_startup_trials=max(proposals.random, 1), n_warmup_steps=warmup)
        parts: dict[str, Any] = {"storage": storage, "sampler": proposals, "pruner": median if prune else NopPruner()}
        try:
            self.study = optuna.load_study(study_name=name, **parts)
        except KeyError:
            self.study = optuna.create_study(study_name=name, direction=direction, load_if_exists=True, **parts)
        self._study_id = storage.get_study_id_from_name(name)

    def finished(self) -> list[FrozenTrial]:
        """The results in order; of several for one place, the first."""
        found: dict[int, FrozenTrial] = {}
        for trial in self._in(*FINISHED):
            found.setdefault(slot_of(trial), trial)
        return [found[slot] for slot in sorted(found) if slot < self.total]

    def running(self) -> dict[int, Owner]:
        """Who works on which place."""
        owners = {slot_of(trial): _owner(trial) for trial in self._in(TrialState.RUNNING)}
        return {slot: owner for slot, owner in owners.items() if owner and slot < self.total}

    def waiting(self) -> list[FrozenTrial]:
        """The places that wait for a worker, in order; those of dead workers do again."""
        self._repair()
        waiting = [trial for trial in self._in(TrialState.WAITING) if slot_of(trial) < self.total]
        return sorted(waiting, key=lambda trial: (slot_of(trial), trial.number))

    def take(self) -> Running | None:
        """The next trial that nobody works on, or None."""
        while waiting := self.waiting():
            if (running := self._begin(waiting[0])) is not None:
                return running
        return None

    def _begin(self, trial: FrozenTrial) -> Running | None:
        identity, slot, owner = self._identity(trial), slot_of(trial), myself(self.worker)
        with contextlib.ExitStack() as undo:
            try:
                self.storage.record_heartbeat(identity)  # first: a running trial without one never counts as dead
                if not self.storage.set_trial_state_values(identity, state=TrialState.RUNNING):
                    return None
                _held.add(owner.token)
                undo.callback(_held.discard, owner.token)
                self.storage.set_trial_user_attr(identity, OWNER, asdict(owner))
            except UpdateFinishedTrialError:  # somebody took it, and was quick; or withdrew it, as one too many
                return None
            undo.callback(self.end, identity, TrialState.FAIL)
            busy = [other for other in self._in(*FINISHED, TrialState.RUNNING) if other.number != trial.number]
            if slot in map(slot_of, busy):
                return None
            running = Running(self, identity, slot, owner.token)  # which proposes its point
            undo.pop_all()
            return running

    def end(self, identity: int, state: TrialState, values: list[float] | None = None) -> bool:
        """Note how a trial ended; False if somebody else was faster."""
        try:
            self.storage.set_trial_state_values(identity, state, values)
        except UpdateFinishedTrialError:
            return False
        return True

    def _repair(self) -> None:
        """See that every place without a result has one trial that waits or runs."""
        with as_experimental():
            fail_stale_trials(self.study)
        for trial in self._in(TrialState.RUNNING):
            if (owner := _owner(trial)) and is_gone(owner, _held):
                self.end(self._identity(trial), TrialState.FAIL)
        trials, whole = placed_trials(self.study), set(self.proposals.space)
        taken: set[int] = set()
        for state in (*FINISHED, TrialState.RUNNING, TrialState.WAITING):
            for trial in trials:
                if trial.state != state:
                    continue
                if state == TrialState.WAITING and slot_of(trial) in taken:  # two who began at once both made it
                    self.end(self._identity(trial), TrialState.FAIL)
                taken.add(slot_of(trial))
        for slot in range(self.total):
            if slot not in taken:
                # One that died while its point was written down has no whole point, and had not begun.
                begun = [trial for trial in trials if slot_of(trial) == slot and whole <= set(trial.params)]
                self.study.add_trial(_waiting(slot, begun))

    def _in(self, *states: TrialState) -> list[FrozenTrial]:
        return [trial for trial in placed_trials(self.study) if trial.state in states]

    def _identity(self, trial: FrozenTrial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)


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

    def __init__(self, slots: Slots, identity: int, slot: int, token: str) -> None:
        self.slots, self.storage, self.identity, self.slot, self.token = slots, slots.storage, identity, slot, token
        self.trial = Trial(slots.study, identity)
        self.lost = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._reported = set(self.storage.get_trial(identity).intermediate_values)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if kind is not None:  # give it back, so that nobody has to wait until we count as dead
            with contextlib.suppress(DatabaseAway):
                self.slots.end(self.identity, TrialState.FAIL)
        _held.discard(self.token)

    def _beat(self) -> None:
        while not self._done.wait(self.storage.heartbeat_interval):
            with contextlib.suppress(DatabaseAway):  # whoever waits for an answer says so
                if self.storage.get_trial(self.identity).state.is_finished():
                    self.lost = True
                    return
                self.storage.record_heartbeat(self.identity)

    def point(self) -> dict[str, float]:
        """Where in the search space this trial is."""
        sides = self.slots.proposals.space.items()
        return {name: self.trial.suggest_float(name, side.low, side.high, log=side.log) for name, side in sides}

    def report(self, step: int, value: float) -> None:
        """Note a value on the way; raises `optuna.TrialPruned` if the trial is hopeless, and not a random one."""
        self.check()
        if step not in self._reported:  # a resumed attack goes over some ground again
            self._reported.add(step)
            self.trial.report(value, step)
        # Beside other workers a random trial may be the last to end; the pruner would then compare it.
        if self.slot >= self.slots.proposals.random and self.trial.should_prune():
            raise optuna.TrialPruned

    def check(self) -> None:
        """Raise `TrialLost` unless the trial is still ours."""
        if self.lost:
            raise TrialLost

    def complete(self, value: float) -> None:
        """Note the result."""
        self._end(TrialState.COMPLETE, [value])

    def prune(self, attribute: str | None = None) -> None:
        """Note that there is no result, but the last report; an attribute says why, if it was not pruned."""
        if attribute:
            self.trial.set_user_attr(attribute, True)
        reports = self.storage.get_trial(self.identity).intermediate_values
        self._end(TrialState.PRUNED, [reports[max(reports)]] if reports else None)

    def _end(self, state: TrialState, values: list[float] | None) -> None:
        if not self.slots.end(self.identity, state, values):
            raise TrialLost
