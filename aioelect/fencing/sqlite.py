"""A guard for what is written to SQLite, through the standard library's `sqlite3`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aioelect._errors import ConfigurationError
from aioelect._term import Term

from . import _sql
from ._offer import check_resource, check_token, refuse_stale

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SqliteGuard"]


class SqliteGuard:
    """Lets only holders write that are not out of date, to a database file that several processes share.

    `update` writes one row that has a column for the token; `transaction` protects whatever is written inside it, by a
    table of its own. Both are synchronous: they wait for the file's lock as long as the connection's timeout says, and
    the event loop waits with them. A process that is paused inside a transaction keeps the file locked: there is no
    server that could throw it out, so prefer `update`.

    Args:
        connection: a `sqlite3.Connection`.
        table: where `transaction` keeps the newest token of each resource; made when it is first needed.

    Raises:
        ConfigurationError: an argument is refused.

    Examples:
        >>> guard = SqliteGuard(sqlite3.connect("stock.db"))  # doctest: +SKIP
        >>> guard.update(term, "stock", {"sku": "SKU-001"}, {"qty": 95})  # doctest: +SKIP
    """

    def __init__(self, connection: sqlite3.Connection, *, table: str = "aioelect_fence") -> None:
        self._connection = connection
        self._table = _sql.identifier("table", table)

    def update(
        self,
        term: Term | int,
        table: str,
        where: Mapping[str, object],
        values: Mapping[str, object],
        *,
        column: str = "fence_token",
    ) -> int:
        """Write one row that has a column for the token: `UPDATE ... WHERE key AND fence_token <= token`.

        Committed at once, or part of the transaction that the connection is in.

        Args:
            term: the term, or a token that came from elsewhere.
            table: the table.
            where: the key of the row.
            values: the columns to set, and their values.
            column: the column for the token, an INTEGER.

        Returns:
            How many rows were written; 0: there is no such row.

        Raises:
            StaleToken: the row has a newer token.
        """
        token = check_token(term.token if isinstance(term, Term) else term)
        with self._unit():
            written = self._execute(*_sql.update_of_row(table, where, values, column, token)).rowcount
            if not written:
                for (newest,) in self._execute(*_sql.newest_in_row(table, where, column)).fetchall():
                    refuse_stale(_sql.row_label(table, where), token, newest)
        return written

    @contextmanager
    def transaction(self, term: Term | int, *, resource: str | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction that begins with the claim of the token: what is written inside is refused if it is stale.

        Args:
            term: the term, or a token that came from elsewhere, with a resource.
            resource: what is written to; default: the term's name.

        Raises:
            StaleToken: a newer token has been seen; before the body.
            LeaseLost, NotHeld: the claim could not be proved any more, before the body or before the commit.
            ConfigurationError: the connection is in a transaction already.
        """
        if isinstance(term, Term):
            term.check()
            resource = term.name if resource is None else resource
        token, place = check_token(term.token if isinstance(term, Term) else term), check_resource(resource)
        with self._begun():
            self._admit(place, token)
            yield self._connection
            if isinstance(term, Term):
                term.check()

    async def admit(self, resource: str, token: int) -> None:
        """Let a token in and remember it, without a write of yours; see `Gate`.

        Raises:
            StaleToken: a newer one has been let in before.
        """
        with self.transaction(token, resource=resource):
            pass

    def _admit(self, resource: str, token: int) -> None:
        run, table = self._connection.execute, self._table
        run(f"CREATE TABLE IF NOT EXISTS {table} (resource TEXT PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID")
        seen = run(f"SELECT token FROM {table} WHERE resource = ?", (resource,)).fetchone()  # noqa: S608 - checked
        refuse_stale(resource, token, seen[0] if seen else None)
        run(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (resource, token))  # noqa: S608 - checked

    @contextmanager
    def _unit(self) -> Iterator[None]:
        if self._in_transaction():
            yield
        else:
            with self._begun():
                yield

    @contextmanager
    def _begun(self) -> Iterator[None]:
        if self._in_transaction():
            raise ConfigurationError(
                "the connection is in a transaction already, and what came before the claim would be unguarded: commit "
                "it first",
                reason="transaction",
            )
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._in_transaction():
                self._connection.execute("ROLLBACK")
            raise

    def _in_transaction(self) -> bool:
        return self._connection.in_transaction

    def _execute(self, sql: str, parameters: Sequence[object]) -> sqlite3.Cursor:
        # By name: to some 3.12 releases a number in a placeholder is a deprecated name.
        values = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return self._connection.execute(_sql.numbered(sql, lambda number: f":p{number}"), values)
