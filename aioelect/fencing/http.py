"""Fencing for services that are called over HTTP: the token travels in a header, and older ones get a 409.

The caller sends `headers(term)`. The service lets a request in through a gate, and writes with the token that it gets:
a request that was let in may be overtaken before it writes, so the place that is written to has the last word.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of what is defined inside a function.

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Union

from aioelect._errors import ConfigurationError, StaleToken
from aioelect._term import Term
from aioelect._tokens import MAX_TOKEN

from ._offer import check_token
from ._protocol import Gate

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware
    from starlette.requests import Request

__all__ = ["HEADER", "aiohttp_middleware", "fastapi_dependency", "headers"]

HEADER = "Fencing-Token"

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


def headers(term: Term | int) -> dict[str, str]:
    """The header that carries a term's token to a service.

    Examples:
        >>> await client.put("/stock/SKU-001", json={"qty": 95}, headers=headers(term))  # doctest: +SKIP
    """
    return {HEADER: str(check_token(term.token if isinstance(term, Term) else term))}


def fastapi_dependency(
    gate: Gate, resource: Union[str, "Callable[[Request], str]"]
) -> "Callable[[Request], Awaitable[int]]":
    """A FastAPI dependency that lets newer tokens in and gives the token to the route.

    A request without the header gets 428, one with a header that is no token 400, one with an older token 409 with
    both numbers. Waits for the gate.

    Args:
        gate: who remembers the newest token, such as `PostgresGuard(pool)`.
        resource: what the tokens are compared for, or how to tell it from the request.

    Examples:
        >>> Token = Annotated[int, Depends(fastapi_dependency(gate, lambda r: r.path_params["sku"]))]  # doctest: +SKIP
    """
    from fastapi import HTTPException
    from starlette.requests import Request

    async def fencing_token(request: Request) -> int:
        status, answer = await _admitted(gate, _resource(resource, request), request.headers.get(HEADER))
        if isinstance(answer, dict):
            raise HTTPException(status, detail=answer)
        return answer

    return fencing_token


def aiohttp_middleware(gate: Gate, resource: Union[str, "Callable[[web.Request], str]"]) -> "Middleware":
    """An aiohttp middleware that lets newer tokens in; the handler finds the token as `int(request.headers[HEADER])`.

    It looks at requests that may change something, not at GET, HEAD, OPTIONS and TRACE. A request without the header
    gets 428, one with a header that is no token 400, one with an older token 409 with both numbers. Waits for the gate.

    Args:
        gate: who remembers the newest token, such as `PostgresGuard(pool)`.
        resource: what the tokens are compared for, or how to tell it from the request.

    Examples:
        >>> web.Application(middlewares=[aiohttp_middleware(gate, "stock")])  # doctest: +SKIP
    """
    from aiohttp import web

    @web.middleware
    async def fencing(request: web.Request, handler: "Handler") -> web.StreamResponse:
        if request.method in _SAFE:
            return await handler(request)
        status, answer = await _admitted(gate, _resource(resource, request), request.headers.get(HEADER))
        if isinstance(answer, dict):
            return web.json_response({"detail": answer}, status=status)
        return await handler(request)

    return fencing


def _resource(resource: object, request: object) -> str:
    found = resource(request) if callable(resource) else resource
    if not isinstance(found, str) or not found:
        raise ConfigurationError(f"resource: {found!r}; expected some text", reason="resource")
    return found


async def _admitted(gate: Gate, resource: str, sent: str | None) -> tuple[int, int | dict[str, object]]:
    """The token, or the status and the body of a refusal."""
    if sent is None:
        return 428, {"error": "fencing token required", "header": HEADER}
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 19 and 0 < int(sent) <= MAX_TOKEN):
        return 400, {"error": "not a fencing token", "header": HEADER}
    token = int(sent)
    try:
        await gate.admit(resource, token)
    except StaleToken as stale:
        return 409, {"error": "stale fencing token", "resource": resource, "token": token, "newest": stale.newest}
    return 200, token
