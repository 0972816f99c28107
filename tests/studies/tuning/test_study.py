"""The study: exactly as many results as asked, whoever works and whoever dies."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from undelta.errors import ConfigError, DatabaseAway
from undelta.studies.tuning.objective import OpenRun, Report
from undelta.studies.tuning.proposals import AGAIN, SLOT
from undelta.studies.tuning.storage import open_storage
from undelta.studies.tuning.study import OWNER, Running, Slots, TrialLost
from undelta.studies.tuning.worker import evaluate
from undelta.trials.leases import myself

from .bowl import Bowl, OpenSlots


def states(slots: Slots) -> Counter[str]:
    return Counter(trial.state.name for trial in slots.study.trials)


def test_as_many_trials_are_finished_as_asked_and_not_one_more(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=6)
    evaluate(slots, Bowl(), tmp_path)
    assert slots.take() is None
    assert states(slots) == {"COMPLETE": 6}
    assert [trial.user_attrs[SLOT] for trial in slots.finished()] == list(range(6))


def test_workers_side_by_side_do_not_exceed_the_number(open_slots: OpenSlots, tmp_path: Path) -> None:
    """Four workers, each with a storage of its own on one file, as four processes have."""
    bowls = [Bowl() for _ in range(4)]
    workers = [
        threading.Thread(target=evaluate, args=(open_slots(total=9, random=9, seed=3), bowl, tmp_path))
        for bowl in bowls
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    slots = open_slots(total=9, random=9, seed=3)
    assert len(slots.finished()) == 9
    assert states(slots)["COMPLETE"] == 9
    assert sum(len(bowl.seen) for bowl in bowls) == 9


def test_a_trial_that_another_worker_withdraws_while_we_take_it_is_let_go(
    open_slots: OpenSlots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other saw it waiting, and a second one for its place: so it withdrew it, just after we had turned it on."""
    slots, other = open_slots(total=1), open_slots(total=1)
    change = slots.storage.set_trial_state_values
    taken: list[int] = []

    def withdrawn(identity: int, state: TrialState, values: Any = None) -> bool:
        changed = change(identity, state=state, values=values)
        if state == TrialState.RUNNING and not taken:
            taken.append(identity)
            other.storage.set_trial_state_values(identity, state=TrialState.FAIL)
        return changed

    monkeypatch.setattr(slots.storage, "set_trial_state_values", withdrawn)
    evaluate(slots, Bowl(), tmp_path)
    assert states(slots) == {"FAIL": 1, "COMPLETE": 1}


def test_more_trials_go_on_where_the_others_ended(open_slots: OpenSlots, tmp_path: Path) -> None:
    evaluate(open_slots(total=3, name="twice"), Bowl(), tmp_path)
    later, once = Bowl(), Bowl()
    evaluate(open_slots(total=6, name="twice"), later, tmp_path)
    evaluate(open_slots(total=6, name="once"), once, tmp_path)
    assert later.seen == once.seen[3:]
    assert len(open_slots(total=2, name="once").finished()) == 2


def test_it_is_a_plain_study_that_anyone_can_load(open_slots: OpenSlots, tmp_path: Path) -> None:
    evaluate(open_slots(total=5), Bowl(), tmp_path)
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    assert optuna.get_all_study_names(storage) == ["bowl"]
    study = optuna.load_study(study_name="bowl", storage=storage)
    assert len(study.trials) == 5
    assert study.best_value == min(trial.value or 0 for trial in study.trials)
    assert set(study.best_params) == {"conv", "linear", "p_mean"}


def test_trials_that_somebody_adds_by_hand_are_left_alone(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=2)
    slots.study.add_trial(create_trial(state=TrialState.COMPLETE, value=0.0))
    evaluate(slots, Bowl(), tmp_path)
    assert [trial.user_attrs[SLOT] for trial in slots.finished()] == [0, 1]


# Disks that are full


def test_a_full_disk_ends_a_tuning_in_one_line_and_it_resumes_to_the_same_points(
    open_slots: OpenSlots, tmp_path: Path, limit_files: Callable[[int | None], None]
) -> None:
    class Filling(Bowl):
        def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
            if len(self.seen) == 2:  # not even the journal of a transaction can be written
                limit_files(1000)
            return super().__call__(settings, report=report, open_run=open_run)

    filling, later, undisturbed = Filling(), Bowl(), Bowl()
    with pytest.raises(DatabaseAway, match=r"does not answer \(.*disk.*\); nothing is lost"):
        evaluate(open_slots(total=4), filling, tmp_path)
    limit_files(None)
    evaluate(open_slots(total=4), later, tmp_path)
    evaluate(open_slots(total=4, name="other"), undisturbed, tmp_path)
    assert [*filling.seen[:2], *later.seen] == undisturbed.seen
    with sqlite3.connect(tmp_path / "study.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_planted_link_is_not_followed(open_slots: OpenSlots, tmp_path: Path) -> None:
    (tmp_path / "study.db").symlink_to(tmp_path / "precious.db")
    with pytest.raises(ConfigError, match=r"study\.db is a link"):
        open_slots(total=1)
    assert not (tmp_path / "precious.db").exists()


# Workers that die


def test_the_trial_of_a_dead_process_is_repeated_with_its_point_and_reports(
    open_slots: OpenSlots, tmp_path: Path
) -> None:
    slots = open_slots(total=1)
    running = slots.take()
    assert running is not None
    point = running.point()
    running.report(1, 7.0)
    # Its owner was a process that is no more: a number that no process has.
    slots.storage.set_trial_user_attr(running.identity, OWNER, {**asdict(myself("gone")), "pid": 2**30})
    bowl = Bowl()
    evaluate(open_slots(total=1), bowl, tmp_path)
    assert bowl.seen == [point]
    (finished,) = slots.finished()
    assert finished.user_attrs[AGAIN] == point
    assert finished.intermediate_values[1] == 7.0  # what had been reported is not reported again
    assert states(slots) == {"FAIL": 1, "COMPLETE": 1}


def test_a_process_that_dies_while_it_writes_its_point_down_leaves_no_half_a_point(
    open_slots: OpenSlots, tmp_path: Path
) -> None:
    slots = open_slots(total=6)
    for _ in range(5):  # also where the process proposes, which must not see it
        with next_of(slots) as running:
            running.complete(sum(running.point().values()))
    dying = next_of(slots)
    half = dying.trial.suggest_float("conv", 1, 1000)
    slots.storage.set_trial_user_attr(dying.identity, OWNER, {**asdict(myself("gone")), "pid": 2**30})
    bowl = Bowl()
    evaluate(open_slots(total=6), bowl, tmp_path)
    (point,) = bowl.seen
    assert point["conv"] == half  # proposed anew, from the same results
    assert AGAIN not in slots.finished()[5].user_attrs


def next_of(slots: Slots) -> Running:
    running = slots.take()
    assert running is not None
    return running


def test_a_living_process_keeps_its_trial(open_slots: OpenSlots) -> None:
    slots = open_slots(total=1)
    running = slots.take()
    assert running is not None
    owner = {**asdict(myself("parent")), "pid": 1, "process_started": ""}
    slots.storage.set_trial_user_attr(running.identity, OWNER, owner)
    assert open_slots(total=1).take() is None
    assert states(slots) == {"RUNNING": 1}


def test_a_worker_elsewhere_is_dead_when_its_heart_stands_still(open_slots: OpenSlots) -> None:
    slots = open_slots(total=1)
    running = slots.take()
    assert running is not None
    slots.storage.set_trial_user_attr(running.identity, OWNER, {**asdict(myself("far")), "machine": "another"})
    other = open_slots(total=1, grace=4)
    with running:  # its heart beats every second
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            assert other.take() is None
            time.sleep(0.2)
        running._done.set()  # the machine is gone
        assert other.take() is None
        time.sleep(5.5)
        taken = other.take()
        assert taken is not None
        assert taken.slot == 0
    with pytest.raises(TrialLost):
        running.complete(0.0)  # it comes back, and is not wanted
    assert states(slots) == {"FAIL": 1, "RUNNING": 1}


def test_whoever_was_given_up_notices_it_on_the_way(open_slots: OpenSlots) -> None:
    slots = open_slots(total=1)
    running = slots.take()
    assert running is not None
    slots.storage.set_trial_state_values(running.identity, TrialState.FAIL)
    with running:
        deadline = time.monotonic() + 60
        while not running.lost and time.monotonic() < deadline:
            time.sleep(0.01)
    with pytest.raises(TrialLost):
        running.check()


def test_a_database_that_is_away_for_a_moment_does_not_stop_the_heart(
    open_slots: OpenSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = open_slots(total=1)
    running = next_of(slots)
    beats: list[int] = []

    def away(identity: int) -> None:
        beats.append(identity)
        raise DatabaseAway

    monkeypatch.setattr(slots.storage, "record_heartbeat", away)
    with running:
        time.sleep(2.5)
        assert len(beats) == 2


def test_whoever_was_given_up_while_it_prunes_leaves_the_trial_alone(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=2)

    class Late(Bowl):
        def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
            if self.seen:
                return super().__call__(settings, report=report, open_run=open_run)
            self.seen.append({})
            (running,) = (trial for trial in slots.study.trials if trial.state == TrialState.RUNNING)
            slots.storage.set_trial_state_values(slots._identity(running), TrialState.FAIL)
            raise optuna.TrialPruned

    evaluate(slots, Late(), tmp_path)
    assert states(slots) == {"FAIL": 1, "COMPLETE": 2}


def test_whoever_was_given_up_goes_on_with_the_next_trial(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=2)

    class Frozen(Bowl):
        def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
            if not self.seen:  # meanwhile others take it for dead
                (running,) = (trial for trial in slots.study.trials if trial.state == TrialState.RUNNING)
                slots.storage.set_trial_state_values(slots._identity(running), TrialState.FAIL)
            return super().__call__(settings, report=report, open_run=open_run)

    evaluate(slots, Frozen(), tmp_path)
    assert states(slots) == {"FAIL": 1, "COMPLETE": 2}


def test_an_error_gives_the_trial_back_at_once(open_slots: OpenSlots, tmp_path: Path) -> None:
    class Broken(Bowl):
        def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
            raise KeyboardInterrupt

    slots = open_slots(total=2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(slots, Broken(), tmp_path)
    assert states(slots) == {"FAIL": 1, "WAITING": 1}
    evaluate(slots, Bowl(), tmp_path)
    assert states(slots) == {"FAIL": 1, "COMPLETE": 2}


def test_two_who_begin_at_once_do_not_double_the_trials(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=2)
    for slot in (0, 1, 0, 1):
        slots.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={SLOT: slot}))
    bowl = Bowl()
    evaluate(slots, bowl, tmp_path)
    assert len(bowl.seen) == 2
    assert states(slots) == {"COMPLETE": 2, "FAIL": 2}


def test_whoever_took_a_trial_withdraws_if_its_place_is_taken(open_slots: OpenSlots) -> None:
    slots = open_slots(total=1)
    running = next_of(slots)
    slots.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={SLOT: 0}))
    other = open_slots(total=1)
    twin = other.study.trials[-1]
    assert other._begin(twin) is None
    assert other.study.trials[-1].state == TrialState.FAIL
    running.complete(1.0)
    slots.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={SLOT: 0}))
    assert other._begin(other.study.trials[-1]) is None
    assert states(slots) == {"COMPLETE": 1, "FAIL": 2}


# Pruning


def test_hopeless_trials_are_ended_early_and_have_no_value(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=12, random=4, prune=True)
    evaluate(slots, Bowl(), tmp_path)
    ends = Counter(trial.state for trial in slots.finished())
    assert ends[TrialState.PRUNED] >= 1
    assert sum(ends.values()) == 12
    assert all(trial.state == TrialState.COMPLETE for trial in slots.finished()[:4])  # the random ones run on
    for trial in slots.finished():
        steps = sorted(trial.intermediate_values)
        assert (steps[-1] < 9) <= (trial.state == TrialState.PRUNED)
        assert steps[-1] >= 3  # none before the warm-up is over


def test_a_random_trial_runs_on_also_where_later_ones_are_finished(open_slots: OpenSlots) -> None:
    """As beside other workers, of whom one is slow."""
    slots = open_slots(total=5, random=2, prune=True)
    slow, *others = [next_of(slots) for _ in range(4)]
    for running in others:
        for step in range(1, 10):
            running.report(step, 1.0)
        running.complete(1.0)
    for step in range(1, 10):
        slow.report(step, 1000.0)
    slow.complete(1000.0)
    hopeless = next_of(slots)
    for step in range(1, 3):  # the warm-up
        hopeless.report(step, 1000.0)
    with pytest.raises(optuna.TrialPruned):
        hopeless.report(3, 1000.0)


def test_nothing_is_pruned_unless_asked(open_slots: OpenSlots, tmp_path: Path) -> None:
    slots = open_slots(total=12, random=4, prune=False)
    evaluate(slots, Bowl(), tmp_path)
    assert states(slots) == {"COMPLETE": 12}


# Storages


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nonsense", "expected a URL such as postgresql"),
        ("postgresql://user:secret@127.0.0.1:1/none", "the database does not answer"),
        ("nosuchdb://x/y", "expected a URL such as postgresql"),
    ],
)
def test_a_wrong_storage_is_one_line_without_the_password(tmp_path: Path, url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        open_storage(url, tmp_path)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_name_serves_as_well(open_slots: OpenSlots, tmp_path: Path) -> None:
    bowl, same = Bowl(), Bowl()
    evaluate(open_slots(total=6, storage=f"sqlite:///{tmp_path / 'other.db'}"), bowl, tmp_path)
    evaluate(open_slots(total=6), same, tmp_path)
    assert bowl.seen == same.seen
