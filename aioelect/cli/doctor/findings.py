"""Facts become findings: what it is, why it matters, what to do, how bad it is. Pure, and told in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aioelect import ConfigurationError
from aioelect.cli.doctor.facts import Channels, Client, Denied, Facts, Slots
from aioelect.cli.doctor.servers import about_node
from aioelect.cli.doctor.severity import Finding, Severity
from aioelect.cli.doctor.ttl import Advice, advise, percentile

__all__ = ["advice_of", "diagnose", "worst"]

OK, NOTE, WARNING, ERROR = Severity

_FLAPPING = 5.0  # seconds of ttl below which a busy machine makes leaders flap
_SLOTS = 16384
_OLDEST, _NEWEST = (5, 0, 8), 9  # redis-py


def diagnose(facts: Facts) -> list[Finding]:
    """All findings; a server that can't be reached leaves those about this side."""
    return list(_all(facts))


def worst(findings: list[Finding]) -> Severity:
    """What decides over the exit code."""
    return max((finding.severity for finding in findings), default=OK)


def advice_of(facts: Facts) -> Advice | None:
    """The ttl that was found to be needed; None where no server answered, or none in time for any ttl."""
    slowest = [percentile(node.round_trips, 0.99) for node in facts.nodes if node.round_trips]
    try:
        return advise(facts.pause, max(slowest)) if slowest else None
    except ConfigurationError:
        return None


def _all(facts: Facts) -> Iterator[Finding]:
    if facts.trouble is not None:
        yield Finding(
            "reachable",
            ERROR,
            f"no server at {facts.address}: {facts.trouble}",
            "nothing can be taken, renewed or released",
            "correct the URL, the password or the network; then run the doctor again",
        )
    for node in facts.nodes:
        yield from about_node(node, facts)
    if facts.trouble is None:
        yield from _cluster(facts)
        yield _ttl(facts)
        yield _rights(facts)
        yield _claim(facts)
        if facts.channels is not None:
            yield _channels(facts.channels)
    yield from _client(facts.client)
    yield _python(facts.client)


def _ttl(facts: Facts) -> Finding:
    advice = advice_of(facts)
    if advice is None:
        return Finding(
            "ttl",
            ERROR,
            "no ttl is long enough for this server",
            "an answer is waited for 5 s at most, whatever the ttl",
            "mend the network, or move closer to the server",
        )
    pause = f"{facts.pause * 1000:.3g} ms ({'measured here, just now' if facts.measured else 'as given'})"
    why = f"a pause of {pause} and the p99 of a round trip need a ttl of {advice.least:.3g} s; twice that is a reserve"
    what = f"ttl {facts.ttl:g} s"
    if facts.ttl < advice.least:
        return Finding("ttl", ERROR, what, why + "; with less, terms are lost", f"take {advice.advised:g} s")
    if facts.ttl < max(_FLAPPING, 2 * advice.least):
        return Finding(
            "ttl", WARNING, what, why + f"; below {_FLAPPING:g} s a busy machine flaps", f"take {advice.advised:g} s"
        )
    return Finding("ttl", OK, what, why)


def _cluster(facts: Facts) -> Iterator[Finding]:
    modes = [node.hello.get("mode") for node in facts.nodes]
    modes += [
        node.info.get("redis_mode") or node.info.get("server_mode")
        for node in facts.nodes
        if not isinstance(node.info, Denied)
    ]
    if facts.behind != "cluster":
        if "cluster" in modes:
            yield Finding(
                "cluster",
                ERROR,
                "the server is a node of a cluster, and the URL names a single server",
                "it refuses the names whose hash slots other nodes serve",
                "name it as redis+cluster://..., and give RedisCluster to the library",
            )
        return
    match facts.slots:
        case Denied(said):
            yield Finding(
                "cluster",
                ERROR,
                f"CLUSTER SLOTS is not answered ({said})",
                "without it nobody knows which node serves a name",
                "allow +cluster|slots (Redis 6.2: +cluster)",
            )
        case Slots(state, served, _) if state not in ("ok", "unknown") or served < _SLOTS:
            yield Finding(
                "cluster",
                ERROR,
                f"cluster_state:{state}, {served} of {_SLOTS} hash slots are served",
                "names in the other slots can be neither taken nor renewed, or none at all",
                "bring the missing masters back, or assign their slots",
            )
        case Slots(_, _, alone) if alone:
            yield Finding(
                "cluster",
                NOTE,
                f"all slots are served; without a replica: {', '.join(alone)}",
                "while such a node is down, its names can't be taken, and their holders stop",
                "give every master a replica",
            )
        case _:
            yield Finding("cluster", OK, "all hash slots are served", "every name has a node")


def _rights(facts: Facts) -> Finding:
    denied = {name: said for name, said in facts.rights.items() if said is not None}
    listing = {name for name in denied if name.startswith("Z")}
    missing = [name for name in denied if name not in listing and name != "PUBLISH"]
    if missing:
        keys = any("access" in denied[name].said and "key" in denied[name].said for name in missing)
        return Finding(
            "rights",
            ERROR,
            f"not allowed: {', '.join(sorted(missing))} ({denied[missing[0]].said})",
            "claims can't be taken, renewed or released without",
            f"allow the keys ~{facts.prefix}:*"
            if keys
            else "allow " + " ".join(f"+{n.lower()}" for n in sorted(missing)),
        )
    if listing:
        return Finding(
            "rights",
            WARNING,
            f"not allowed: {', '.join(sorted(listing))}",
            "everything works, but nobody sees who stands, and weights don't count",
            _allow(listing),
        )
    return Finding("rights", OK, "all commands that are needed are allowed", "each was tried under a name of our own")


def _allow(commands: Iterable[str]) -> str:
    return "allow " + " ".join(f"+{command.lower()}" for command in sorted(commands))


def _claim(facts: Facts) -> Finding:
    if facts.claim is None:
        return Finding("claim", OK, "a claim was taken, renewed and released", "as the library does it, and removed")
    return Finding(
        "claim",
        ERROR,
        f"a claim could not be taken, renewed and released: {facts.claim.said}",
        "this is what every lock and every candidate would see",
        "see the findings above, and what the server says",
    )


def _channels(channels: Channels) -> Finding:
    if channels.publish is None and channels.listening and channels.heard:
        return Finding("channels", OK, "a release was heard of", "who waits is told at once")
    what = "notices of releases don't arrive"
    if channels.publish is not None:
        what = f"notices can't be published ({channels.publish.said})"
    elif not channels.listening:
        what = "notices can't be listened to"
    return Finding(
        "channels",
        WARNING,
        what,
        "who waits polls instead, ten times a ttl: slower, and more work for the server",
        "allow the channels &PREFIX:* and +publish +subscribe +unsubscribe",
    )


def _client(client: Client) -> Iterator[Finding]:
    version = ".".join(map(str, client.redis))
    if client.redis < _OLDEST or client.redis[0] >= _NEWEST:
        yield Finding(
            "client",
            ERROR,
            f"redis-py {version}",
            "older ones lose connections when a call is cancelled, newer ones are not known",
            "install redis>=5.0.8,<9",
        )
    elif client.retrying:
        yield Finding(
            "client",
            WARNING,
            f"redis-py {version}, told by the URL to repeat what failed",
            "a command whose answer was lost is sent twice: an INCR counts double. (The library's own connections never"
            " repeat)",
            "leave retry_on_timeout and retry_on_error out, and repeat only what may be repeated",
        )
    elif client.redis[0] >= 6:
        yield Finding(
            "client",
            NOTE,
            f"redis-py {version}",
            "a client made by Redis(...) repeats what failed: an INCR whose answer was lost counts double."
            " (The library's own connections never repeat)",
            "for your own writes: Redis(..., retry=Retry(NoBackoff(), 0)), or Redis.from_url(...)",
        )
    else:
        yield Finding("client", OK, f"redis-py {version}", "5.0.8 and newer, up to 8, are supported")
    if not client.hiredis:
        yield Finding(
            "client", NOTE, "hiredis is missing", "answers are read more slowly", "pip install redis[hiredis]"
        )


def _python(client: Client) -> Finding:
    python = ".".join(map(str, client.python))
    if client.python >= (3, 12):
        return Finding("python", OK, f"Python {python}", "cancellations arrive")
    if client.socket_timeout:
        return Finding(
            "python",
            WARNING,
            f"Python {python}, and a client with a socket_timeout",
            "a single task.cancel() or asyncio.timeout() around your own calls of redis can get lost there. (The"
            " library's own connections have none, and work is cancelled again until it stops)",
            "Python 3.12, or socket_timeout=None, or anyio's move_on_after in place of asyncio.timeout",
        )
    return Finding(
        "python",
        NOTE,
        f"Python {python}",
        "with a socket_timeout (Redis(...) of redis-py 8 has one) a cancellation of your own calls can get lost",
        "Python 3.12, or socket_timeout=None",
    )
