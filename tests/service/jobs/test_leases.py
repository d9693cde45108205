"""Any order of claims, renewals, deaths, returns and set clocks: a job has one writer at a time."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.jobs.base import LEASE_S, Claim, Job
from service.jobs.sqlite import SqliteJobs
from service.store.sqlite import SqliteDatabase
from tests.examples import examples

WORKERS = st.sampled_from(["w1", "w2", "w3"])


class Leases(RuleBasedStateMachine):
    """One job on the real store, beside a model of what it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.runner = asyncio.Runner()
        self.database = SqliteDatabase()
        self.jobs = SqliteJobs(self.database, lambda: self.now_s)
        # Of the model:
        self.exists = False
        self.owner: Claim | None = None
        self.owner_name: str | None = None
        self.lease_until_s = 0.0
        self.waits_until_s = 0.0
        self.cursor = b""
        self.num_claims = 0
        self.deaths = 0
        self.stale: list[Claim] = []  # claims that others have followed

    def teardown(self) -> None:
        self.runner.run(self.database.close())
        self.runner.close()

    @property
    def is_due(self) -> bool:
        until_s = self.lease_until_s if self.owner else self.waits_until_s
        return self.exists and self.now_s > until_s

    @precondition(lambda self: not self.exists)
    @rule(owner=st.none() | WORKERS)
    def put(self, owner: str | None) -> None:
        claim = self.runner.run(self.jobs.put(Job("a", "count", "ann", b""), owner))
        self.exists, self.cursor, self.num_claims, self.deaths = True, b"", 0, 0
        self.waits_until_s, self.stale = 0.0, []
        assert (claim is None) == (owner is None)
        if claim is not None:
            self._claimed(claim, owner)

    @rule(owner=WORKERS)
    def claim(self, owner: str) -> None:
        is_due, died = self.is_due, self.owner
        claim = self.runner.run(self.jobs.claim("a", owner))
        assert (claim is not None) == is_due
        if claim is not None:
            if died is not None:
                self.deaths += self.owner_name != owner
                self.stale.append(died)
            self._claimed(claim, owner)

    def _claimed(self, claim: Claim, owner: str | None) -> None:
        self.num_claims += 1
        assert claim.fence == self.num_claims
        assert (claim.cursor, claim.deaths) == (self.cursor, self.deaths)
        self.owner, self.owner_name = claim, owner
        self.lease_until_s = self.now_s + LEASE_S

    @precondition(lambda self: self.owner is not None)
    @rule(cursor=st.none() | st.binary(max_size=3), is_cleared=st.booleans())
    def renew(self, cursor: bytes | None, is_cleared: bool) -> None:
        """Also after the lease, if nobody has followed."""
        assert self.owner is not None
        renewing = self.jobs.renew("a", self.owner.fence, cursor, is_cleared=is_cleared)
        assert self.runner.run(renewing)
        self.lease_until_s = self.now_s + LEASE_S
        self.cursor = self.cursor if cursor is None else cursor
        self.deaths = 0 if is_cleared else self.deaths

    @precondition(lambda self: bool(self.stale))
    @rule(data=st.data(), again_s=st.none() | st.just(0.0))
    def come_back(self, data: st.DataObject, again_s: float | None) -> None:
        """A worker whose job another has claimed may change nothing."""
        claim = data.draw(st.sampled_from(self.stale))
        assert not self.runner.run(self.jobs.renew("a", claim.fence, b"stale"))
        assert not self.runner.run(self.jobs.finish("a", claim.fence, again_s))

    @precondition(lambda self: self.owner is not None)
    @rule(again_s=st.none() | st.sampled_from([0.0, 5.0]))
    def finish(self, again_s: float | None) -> None:
        assert self.owner is not None
        assert self.runner.run(self.jobs.finish("a", self.owner.fence, again_s))
        if again_s is None:
            self.exists = False
        else:
            self.stale.append(self.owner)
            self.waits_until_s = self.now_s + again_s if again_s else 0.0
        self.owner = None

    @rule(seconds=st.sampled_from([0.5, 3.0, LEASE_S, LEASE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def it_is_due_to_whoever_looks_and_only_when_nobody_has_it(self) -> None:
        due = self.runner.run(self.jobs.due(("count",), 10))
        deaths = self.deaths + (self.owner is not None)
        assert due.claimable == ((("a", deaths),) if self.is_due else ())
        assert self.runner.run(self.jobs.has("a")) == self.exists


def test_a_job_has_one_writer_and_loses_nothing_whatever_happens() -> None:
    run_state_machine_as_test(
        Leases,
        settings=settings(
            max_examples=examples(120).max_examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
