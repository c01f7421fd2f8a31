"""What a case stands on: servers, connected rivals, interleaved slices, processes, progress."""

from __future__ import annotations

import gc
import importlib.util
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from bench.results import US, Outcome, Row
from bench.rivals import RIVALS, Rival, SectionMaker
from support import servers
from support.servers import Server

__all__ = ["Bench", "Case", "Player", "Slices", "case", "cases", "commands", "connections", "label", "quiet", "settle"]

T = TypeVar("T")
TTL = 15.0


class Teller(Protocol):
    """Hears how far a case is."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


@dataclass(frozen=True)
class Player:
    """A rival that is connected and ready."""

    rival: Rival
    section: SectionMaker

    @property
    def name(self) -> str:
        """The rival's name."""
        return self.rival.name


class Slices(Generic[T]):
    """What each player's slices gave, in the order of the rounds, and who can't take part and why."""

    def __init__(self) -> None:
        self.of: dict[str, list[T]] = {}
        self.absent: dict[str, str] = {}

    def rows(self, what: str) -> list[Row]:
        """A row for each one who is absent."""
        return [Row(name, what, note=why) for name, why in self.absent.items()]


@dataclass
class Bench:
    """Where a case runs."""

    server: Server
    quick: bool
    tell: Teller

    def pick(self, full: T, quick: T) -> T:
        """A size: the real one, or the one that only shows that the case works."""
        return quick if self.quick else full

    @contextmanager
    def own_server(self) -> Iterator[Server]:
        """A server of the case's own: to count its commands, to stop it."""
        with Server(servers.newest()) as server:
            yield server

    def present(self, case: str) -> tuple[list[Rival], dict[str, str]]:
        """The rivals that can take part in a case; and why the others can't."""
        absent = {rival.name: rival.cannot[case] for rival in RIVALS.values() if case in rival.cannot}
        for rival in RIVALS.values():
            if not _installed(rival):
                absent[rival.name] = f"{rival.package} is not installed here: make bench installs it"
        return [rival for rival in RIVALS.values() if rival.name not in absent], absent

    @asynccontextmanager
    async def players(
        self, case: str, coroutines: int = 1, server: Server | None = None
    ) -> AsyncIterator[tuple[list[Player], dict[str, str]]]:
        """All rivals that can take part, connected to the server; and why the others can't."""
        present, absent = self.present(case)
        port = (server or self.server).port
        async with AsyncExitStack() as stack:
            players = [
                Player(rival, await stack.enter_async_context(rival.connect(port, coroutines, label(rival.name))))
                for rival in present
            ]
            yield players, absent

    async def interleave(
        self,
        players: Sequence[Player],
        absent: dict[str, str],
        rounds: int,
        run: Callable[[Player, int], Awaitable[T]],
    ) -> Slices[T]:
        """Run one slice of each player per round, forwards and backwards in turn, so that noise hits all alike.

        A player that raises is out, with its error as the reason; aioelect's own error ends the case.
        """
        slices: Slices[T] = Slices()
        slices.absent = dict(absent)
        playing = list(players)
        settle()
        for number in range(rounds):
            for player in playing[:: 1 if number % 2 == 0 else -1]:
                self.tell(number, rounds, player.name)
                try:
                    slices.of.setdefault(player.name, []).append(await run(player, number))
                except Exception as error:  # what a rival can't do is a finding
                    if player.name == US:
                        raise
                    slices.of.pop(player.name, None)
                    slices.absent[player.name] = f"{type(error).__name__}: {error}"[:120]
                    playing = [other for other in playing if other is not player]
        return slices


Measure = Callable[[Bench], Awaitable[Outcome]]


@dataclass(frozen=True)
class Case:
    """One question, and how it is answered."""

    name: str
    title: str
    measure: Measure

    @property
    def definition(self) -> str:
        """What exactly is measured."""
        return self.measure.__doc__ or ""


_cases: dict[str, Case] = {}


def case(name: str, title: str) -> Callable[[Measure], Measure]:
    """Make a coroutine function a case; its docstring is the definition of what is measured."""

    def register(measure: Measure) -> Measure:
        _cases[name] = Case(name, title, measure)
        return measure

    return register


def cases() -> dict[str, Case]:
    """All cases that were imported, in that order."""
    return dict(_cases)


def settle() -> None:
    """Bring the garbage collector into its state for measuring: on, as in a service, what was made so far set aside."""
    gc.collect()
    gc.freeze()


def quiet() -> None:
    """Take the library's warnings off the screen: some cases lose claims by the dozen, on purpose."""
    logger = logging.getLogger("aioelect")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def label(name: str) -> str:
    """A rival's name as its connections carry it: no spaces are allowed there."""
    return name.replace(" ", "-")


def connections(server: Server, name: str) -> list[dict[str, str]]:
    """What the server's CLIENT LIST says of the connections that carry a label."""
    listed = server.call("CLIENT", "LIST").decode().splitlines()
    found = [dict(field.split("=", 1) for field in line.split(" ")) for line in listed if line]
    return [fields for fields in found if fields["name"] == label(name)]


def commands(server: Server, name: str) -> dict[str, int]:
    """How many commands each connection with a label has sent, by the connection's id.

    Where the server counts pipelines that is exact; else `tot-cmds`, which may count the commands inside scripts, too.
    """
    return {
        fields["id"]: int(fields.get("avg-pipeline-len-sum") or fields["tot-cmds"])
        for fields in connections(server, name)
    }


def _installed(rival: Rival) -> bool:
    module = {"python-redis-lock": "redis_lock"}.get(rival.package, rival.package)
    return importlib.util.find_spec(module) is not None
