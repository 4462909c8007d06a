"""Any sequence of calls does to an adapter what it does to the model."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from shared.core.errors import ConditionFailed
from shared.ports import ABSENT, Check, Delete, Failure, Index, Put
from tests.contract.model import ModelTable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from shared.ports import Item, Write
    from tests.contract.backends import Backend

PARTITIONS = ["p", "p#", "q"]
SORTS = ["A", "A#", "A#1", "A#\U0010ffff", "Aé", "B"]
GROUPS = ["g", "h"]
ORDERS = st.integers(0, 3)

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
bodies = st.dictionaries(st.text(max_size=5), values, max_size=3)
indexes = st.none() | st.builds(Index, st.sampled_from(GROUPS), ORDERS)
keys = st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(SORTS))
# What a write expects: nothing, absence, or the version that is there plus this.
offsets = st.sampled_from([None, ABSENT, 0, 0, 0, 1])
lifetimes = st.sampled_from([None, None, None, -1, 1, 2])  # in units
drafts = st.lists(
    st.tuples(
        st.sampled_from([Put, Put, Delete, Check]), keys, offsets, bodies, indexes, lifetimes
    ),
    max_size=5,
    unique_by=lambda draft: draft[1],
)


class TableMachine(RuleBasedStateMachine):
    """Calls an adapter and the model alike, and compares all that they answer."""

    backend: Backend

    def __init__(self) -> None:
        super().__init__()
        backend = self.backend
        self.unit = backend.unit
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.ports = self.run(self.stack.enter_async_context(backend.open(Path(folder))))
        self.model = ModelTable(self.ports.clock)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def both(self, call: Any) -> None:
        async def compare() -> None:
            found: list[Item] = await call(self.ports.table)
            assert found == await call(self.model)
            for item in found:
                item.body["changed by a reader"] = True

        self.run(compare())

    @rule(drafts=drafts)
    def commit(self, drafts: list[Any]) -> None:
        async def compare() -> None:
            writes = [await self.write(*draft) for draft in drafts]
            assert await outcome(self.ports.table.commit(writes)) == await outcome(
                self.model.commit(writes)
            )
            for write in writes:
                if isinstance(write, Put):
                    write.body["changed by the writer"] = True  # type: ignore[index]

        self.run(compare())

    async def write(
        self,
        kind: type[Write],
        key: tuple[str, str],
        offset: Any,
        body: dict[str, Any],
        index: Index | None,
        lifetime: int | None,
    ) -> Write:
        stored = await self.model.get(*key)
        there = stored.version if stored else 1
        expect = there + offset if isinstance(offset, int) else offset
        if kind is Put and stored is None and expect is None:
            # Whether a put begins at version 1 on an expired item is left to the adapter.
            expect = ABSENT
        if kind is Delete:
            return Delete(*key, expect=expect)
        if kind is Check:
            return Check(*key, expect=expect)
        expires = lifetime and self.ports.clock.now() + lifetime * self.unit
        return Put(*key, body, expect=expect, index=index, expires=expires)

    @rule()
    def let_time_pass(self) -> None:
        self.run(self.ports.elapse(self.unit))

    @rule(
        partition=st.sampled_from(PARTITIONS),
        prefix=st.sampled_from(["", *SORTS]),
        after=st.none() | st.sampled_from(["", "Z", *SORTS]),
        limit=st.none() | st.integers(1, 3),
        reverse=st.booleans(),
    )
    def query(self, partition: str, prefix: str, **options: Any) -> None:
        self.both(lambda table: table.query(partition, prefix, **options))

    @rule(
        group=st.sampled_from(GROUPS),
        low=ORDERS,
        high=st.none() | ORDERS,
        limit=st.integers(1, 4),
        reverse=st.booleans(),
    )
    def index(self, group: str, **options: Any) -> None:
        if self.backend.prompt_index:
            self.both(lambda table: table.index(group, **options))

    @invariant()
    def same(self) -> None:
        for partition in PARTITIONS:
            self.both(lambda table, partition=partition: table.query(partition))

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()


async def outcome(commit: Awaitable[None]) -> tuple[Failure, ...]:
    try:
        await commit
    except ConditionFailed as failed:
        return failed.failures
    return ()


def test_a_table_behaves_as_the_model(backend: Backend) -> None:
    machine = type("Machine", (TableMachine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
