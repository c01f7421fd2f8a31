"""SQL as text, with parameters `$1`, `$2`, ...; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources

from aioelect._errors import ConfigurationError

__all__ = [
    "fence_table",
    "fence_trigger",
    "identifier",
    "newest_in_row",
    "numbered",
    "row_label",
    "token_sequence",
    "update_of_row",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_PARAMETER = re.compile(r"\$(\d+)")


def identifier(field: str, name: object) -> str:
    """A table's or column's name, quoted; exactly as it stands in the catalogue, a schema before a dot."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{field}={name!r}; expected letters, digits and underscores, and a schema before a dot", reason=field
        )
    return ".".join(f'"{part}"' for part in name.split("."))


def numbered(sql: str, form: Callable[[str], str]) -> str:
    """The statement with its parameters in a driver's own form."""
    return _PARAMETER.sub(lambda match: form(match[1]), sql)


def update_of_row(
    table: str, where: Mapping[str, object], values: Mapping[str, object], column: str, token: int
) -> tuple[str, Sequence[object]]:
    """A conditional write: only if the row's token is not newer."""
    fence = identifier("column", column)
    sets = [f"{identifier('values', name)} = ${number}" for number, name in enumerate(values, 2)]
    row = _row(where, 2 + len(values))
    sql = (
        f"UPDATE {identifier('table', table)} SET {', '.join([f'{fence} = $1', *sets])} "  # noqa: S608 - names are checked
        f"WHERE {row} AND coalesce({fence}, 0) <= $1"
    )
    return sql, [token, *values.values(), *where.values()]


def newest_in_row(table: str, where: Mapping[str, object], column: str) -> tuple[str, Sequence[object]]:
    """The token that a row has."""
    fence = identifier("column", column)
    sql = f"SELECT {fence} FROM {identifier('table', table)} WHERE {_row(where, 1)}"  # noqa: S608 - names are checked
    return sql, list(where.values())


def row_label(table: str, where: Mapping[str, object]) -> str:
    """What a row is called in an error."""
    return f"{table} {', '.join(f'{name}={value!r}' for name, value in where.items())}"


def _row(where: Mapping[str, object], first: int) -> str:
    if not where:
        raise ConfigurationError("where={}; expected the key of one row", reason="where")
    return " AND ".join(f"{identifier('where', name)} = ${number}" for number, name in enumerate(where, first))


def fence_table(table: str = "aioelect_fence") -> str:
    """The DDL of the fence table, for your migrations; it also lies in the package, as `fencing/sql/fence_table.sql`.

    Run it before the first process that uses `PostgresGuard.transaction` is started.

    Examples:
        >>> await connection.execute(fence_table())  # doctest: +SKIP
    """
    return _file("fence_table").replace("aioelect_fence", identifier("table", table))


def token_sequence(sequence: str = "aioelect_token") -> str:
    """The DDL of the sequence behind `PostgresSequence`; also in the package, as `fencing/sql/token_sequence.sql`."""
    return _file("token_sequence").replace("aioelect_token", identifier("sequence", sequence))


def fence_trigger(table: str, column: str = "fence_token") -> str:
    """The DDL of a trigger that refuses updates with an older token, whoever writes to `table`.

    For PostgreSQL 14 and up. It also lies in the package, as `fencing/sql/fence_trigger.sql`. The error has SQLSTATE
    ZF001, and `PostgresGuard` makes a StaleToken of it.
    """
    identifier("column", column)
    text = _file("fence_trigger").replace("guarded_table", identifier("table", table))
    text = text.replace(".fence_token", f".{identifier('column', column)}")
    return text.replace("'fence_token'", f"'{column}'")


def _file(name: str) -> str:
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
