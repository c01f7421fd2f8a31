"""OFFER: `Elector`, a role that one of several copies has at a time, for the life of the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from aioelect._attendance import Fitness, Ready, StepDownHook, obey
from aioelect._background import spawn
from aioelect._bout import Bout, current_task
from aioelect._candidacy import Candidacy
from aioelect._core.names import check_weight, pack_info
from aioelect._core.timing import Duration
from aioelect._errors import ConfigurationError, LeaseLost, NotHeld
from aioelect._follow import Following, Leader, LeaderEvent, Standing
from aioelect._guard import Guard
from aioelect._keeper import Keeper
from aioelect._lease import Session
from aioelect._store import Stand, roles_of
from aioelect._term import Term, check_function
from aioelect._tokens import TokenSource
from aioelect._vitals import Vitals
from aioelect.facts import CandidacyBegan, CandidacyOver, FitnessChanged, Observer

if TYPE_CHECKING:
    from aioelect._lease import Client
    from aioelect._stall import OnStall

__all__ = ["Elector"]

R = TypeVar("R")


class Elector:
    """Which copy is the leader right now? Campaign, lead, lose, campaign again.

    Four forms, for four needs: `await run(work)` as the caller's whole life; `async with running(work)` beside an
    application; `async with lead()` for one term in this block; `async with elector` to stand in the background and
    follow what happens as an async iterator of events.

    Args:
        redis: a `redis.asyncio.Redis` (also from `Sentinel.master_for`), a `redis.asyncio.RedisCluster`, or a store.
        name: of the election: 1 to 200 bytes, no braces, no control characters.
        ttl: the worst case of a take-over after a crash, 0.1 s to 24 h; 10 to 30 s suits most.
        renew_interval, renew_deadline, drain_limit, fence_retention, identity, prefix, observers, tokens: as for
            `Lease`.
        info: what a leader tells of itself (an address, a version), text by text, at most 1024 bytes as JSON.
        weight: 0 to 1000. When the name is free, candidates of a higher weight go first. Who leads is not disturbed.
        ready: says whether this candidate may lead, sync or async; asked every renew interval (1 s at most). An unfit
            candidate does not stand; a leader that stays unfit for a ttl resigns. To raise, or to be silent for a renew
            interval, is to be unfit.
        before_step_down: awaited with the term before it ends because somebody asked for that (`step_down()`);
            cancelled after the drain limit.
        on_stall: have a thread notice an event loop that is blocked while we lead. "report": log where it is stuck,
            once per stall, after a third of the ttl. "exit": that, and end the process with code 70 when the renew
            deadline passes meanwhile, before another can lead. Code that holds the GIL blocks that thread, too.

    All durations are seconds (int or float) or timedelta.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> async with Elector(redis, "scheduler").running(work):  # doctest: +SKIP
        ...     yield
    """

    def __init__(
        self,
        redis: Client,
        name: str,
        *,
        ttl: Duration = 15.0,
        renew_interval: Duration | None = None,
        renew_deadline: Duration | None = None,
        drain_limit: Duration | None = None,
        fence_retention: Duration | None = None,
        identity: str | None = None,
        prefix: str = "aioelect",
        observers: Iterable[Observer] | None = None,
        tokens: TokenSource | None = None,
        info: Mapping[str, str] | None = None,
        weight: int = 0,
        ready: Ready | None = None,
        before_step_down: StepDownHook | None = None,
        on_stall: OnStall | None = None,
    ) -> None:
        self._session = Session(
            redis,
            name,
            ttl=ttl,
            renew_interval=renew_interval,
            renew_deadline=renew_deadline,
            drain_limit=drain_limit,
            fence_retention=fence_retention,
            identity=identity,
            prefix=prefix,
            observers=observers,
            tokens=tokens,
        )
        self._vitals = Vitals()
        tell = self._session.observers
        tell.also(self._vitals)
        if on_stall is not None:
            from aioelect._stall import StallGuard, check_on_stall  # noqa: PLC0415 - few want it

            tell.also(StallGuard(check_on_stall(on_stall), tell))
        timing = self._session.timing
        self._stand_for = Stand(check_weight(weight), pack_info(info), timing.listed, timing.deference)
        for what, wanted in (("weight", weight), ("info", info), ("before_step_down", before_step_down)):
            if wanted:
                roles_of(self._session.store, what)
        if before_step_down is not None:
            check_function("before_step_down", before_step_down)
        self._before_step_down = before_step_down
        self._fitness: Fitness | None = None
        if ready is not None:
            check_function("ready", ready)
            self._fitness = Fitness(ready, timing, self._tell_fitness)
        self._terms: tuple[Term, ...] = ()  # replaced, never changed: other threads read it
        self._candidacy: Candidacy | None = None

    @property
    def is_leader(self) -> bool:
        """True while a term of this elector may work: a local read of the clock, from any thread."""
        return self.term is not None

    @property
    def term(self) -> Term | None:
        """The term that may work now, if there is one."""
        return next((term for term in self._terms if term.is_leader), None)

    @property
    def is_standing(self) -> bool:
        """True while a candidacy in the background goes on; false once something has ended it, for a health check."""
        return self._candidacy is not None and not self._candidacy.standing.over

    @property
    def leader(self) -> Leader | None:
        """Who leads, as last heard by the candidacy in the background; None: nobody, or nothing heard yet."""
        return None if self._candidacy is None else self._candidacy.standing.leader

    async def run(self, work: Callable[[Term], Awaitable[R]]) -> R:
        """Campaign, run `work(term)` when elected, and stand again after every loss.

        Waits as long as it takes. A cancellation ends the work first, then releases, then comes out.

        Returns:
            What the work returned. It ends the term.

        Raises:
            StoreRejected: the store refuses to serve and has never done so.
            Exception: whatever the work raised.
        """
        check_function("work", work)
        self._refuse_if_entered("run()")
        return await self._campaign(work, Standing())

    @asynccontextmanager
    async def running(self, work: Callable[[Term], Awaitable[object]]) -> AsyncIterator[Elector]:
        """An async context manager that campaigns beside its body, with `work(term)` running while elected.

        Entering never waits. Leaving cancels the work, awaits it, releases, and raises what ended the candidacy, if
        something did: an error of the work, or a store that never served. Enter and leave in any tasks.
        """
        check_function("work", work)
        self._enter(work)
        try:
            yield self
        except BaseException as exc:
            await self._leave(exc)
            raise
        await self._leave(None)

    @asynccontextmanager
    async def lead(self) -> AsyncIterator[Term]:
        """An async context manager: wait to be elected, lead in its body, step down at its end.

        Entering waits as long as it takes; a cancelled call leaves no claim behind. A loss cancels the body and comes
        out as LeaseLost; after `term.resign()` the body is cancelled and nothing comes out.
        """
        self._refuse_if_entered("lead()")
        with self._candidate():
            async with Guard(await self._stand(Standing(), served=False)) as term:
                yield term

    async def __aenter__(self) -> Self:
        """Stand in the background; never waits. Follow it by iterating, or by `wait_elected()`."""
        self._enter(_until_stopped)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Step down: stop the term's children, await them, release. A cancellation comes out when that is done."""
        await self._leave(exc)

    def __aiter__(self) -> AsyncIterator[LeaderEvent]:
        """The present state first, then every change; any number of iterators, leaving one changes nothing."""
        return Following(self._entered().standing)

    async def wait_elected(self) -> Term:
        """Wait until this elector leads. May be cancelled at no loss.

        Raises:
            NotHeld: the candidacy has ended.
            Exception: what ended the candidacy.
        """
        standing = self._entered().standing
        with standing.listening() as changed:
            while standing.term is None or not standing.term.is_leader:
                if standing.failure is not None:
                    raise standing.failure
                if standing.over:
                    raise NotHeld(f"the candidacy for {self._session.name!r} has ended", name=self._session.name)
                changed.clear()
                await changed.wait()
            return standing.term

    async def current(self) -> Leader | None:
        """Who leads, as the store tells now; None: nobody. Waits for one round trip; the elector need not be entered.

        Raises:
            StoreUnavailable: no answer.
            StoreRejected: the store refuses to serve.
            ConfigurationError: the store can't tell.
        """
        from aioelect._observe import current  # noqa: PLC0415 - most electors follow, and don't ask

        return await current(roles_of(self._session.store, "current()"), self._session.name)

    # -- shared by the four forms

    async def _campaign(self, work: Callable[[Term], Awaitable[R]], standing: Standing) -> R:
        served = False
        with self._candidate():
            while True:
                keeper = await self._stand(standing, served=served)
                served, term = True, keeper.term
                standing.began(term)
                try:
                    async with Guard(keeper):
                        return await work(term)
                except LeaseLost as exc:
                    if exc.term_id != term.id:
                        raise
                    continue
                finally:
                    standing.ended(term)
                await asyncio.sleep(self._session.timing.resign_pause())

    @contextmanager
    def _candidate(self) -> Iterator[None]:
        session = self._session
        session.observers(CandidacyBegan(session.name, session.identity))
        try:
            yield
        finally:
            session.observers(CandidacyOver(session.name, session.identity))

    async def _stand(self, standing: Standing, *, served: bool) -> Keeper:
        keeper: Keeper | None = None
        while keeper is None:
            keeper = await self._stand_while_fit(standing, served=served)
        obey(keeper, self._session.store, self._session.observers, self._before_step_down)
        if self._fitness is not None:
            keeper.start_soon(self._fitness.resign_when_unfit, (keeper,))
        self._terms = (*(term for term in self._terms if term.end_reason is None), keeper.term)
        return keeper

    async def _stand_while_fit(self, standing: Standing, *, served: bool) -> Keeper | None:
        winning = partial(self._session.acquire, None, stand=self._stand_for, served=served, on_holder=standing.saw)
        if self._fitness is None:
            return await winning()
        await self._fitness.until_fit()
        keeper: Keeper | None = None
        with Bout(current_task()) as bout:
            looking = spawn(self._fitness.stop_when_unfit(bout), f"fitness of {self._session.name}")
            try:
                keeper = await winning()
            finally:
                looking.cancel()
        return keeper

    def _tell_fitness(self, fit: bool, cause: str) -> None:
        self._session.observers(FitnessChanged(self._session.name, self._session.identity, fit, cause))

    def _enter(self, work: Callable[[Term], Awaitable[object]]) -> None:
        self._refuse_if_entered("another entry")
        self._candidacy = Candidacy(self._session, partial(self._campaign, work))

    async def _leave(self, body_error: BaseException | None) -> None:
        candidacy = self._entered()
        try:
            await candidacy.stop()
        finally:
            self._candidacy = None
        failure = candidacy.standing.failure
        if failure is not None and failure is not body_error:
            if body_error is None:
                raise failure
            body_error.add_note(f"the candidacy for {self._session.name!r} had ended, too: {failure!r}")

    def _entered(self) -> Candidacy:
        if self._candidacy is None:
            raise ConfigurationError(
                f"this elector for {self._session.name!r} is not standing: enter it first, by 'async with elector'",
                name=self._session.name,
            )
        return self._candidacy

    def _refuse_if_entered(self, what: str) -> None:
        if self._candidacy is not None and not self._candidacy.loop.is_closed():
            raise ConfigurationError(
                f"this elector for {self._session.name!r} is standing already; {what} needs an elector of its own",
                name=self._session.name,
            )

    def __repr__(self) -> str:
        return f"<Elector {self._session.name!r} ttl={self._session.timing.ttl:g} is_leader={self.is_leader}>"


async def _until_stopped(_: Term) -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
