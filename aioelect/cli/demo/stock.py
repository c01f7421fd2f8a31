"""The place that the pods write to: one row in SQLite, written without and with a fence."""

from __future__ import annotations

import sqlite3
from contextlib import closing

__all__ = ["FENCED", "PLAIN", "Stock"]

SKU = "SKU-001"
FIRST = 100

PLAIN = "UPDATE stock SET qty = :qty WHERE sku = :sku"
FENCED = """\
UPDATE stock SET qty = :qty, fence_token = :token
WHERE sku = :sku AND fence_token <= :token"""


class Stock:
    """A stock figure. Everything here is synchronous: no other code of the process runs meanwhile."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=5.0)

    @classmethod
    def create(cls, path: str) -> None:
        """Make the table, with one article in it."""
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, qty INTEGER, fence_token INTEGER)")
            connection.execute("INSERT INTO stock VALUES (?, ?, 0)", (SKU, FIRST))

    def write(self, qty: int, token: int, *, fenced: bool) -> int:
        """Set the quantity; returns the rows changed. 0 under a fence: a newer holder has written, so stop."""
        with self._connection:
            return self._connection.execute(
                FENCED if fenced else PLAIN, {"qty": qty, "token": token, "sku": SKU}
            ).rowcount

    def quantity(self) -> int:
        """What stands there now."""
        (qty,) = self._connection.execute("SELECT qty FROM stock WHERE sku = ?", (SKU,)).fetchone()
        return int(qty)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
