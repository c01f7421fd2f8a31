"""The findings about one server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aioelect.cli.doctor.facts import Denied, Facts, Node
from aioelect.cli.doctor.severity import Finding, Severity
from aioelect.cli.doctor.ttl import percentile

__all__ = ["about_node"]

OK, NOTE, WARNING, ERROR = Severity

_CLOCKS = 1.0  # seconds: the alerts compare the clocks of instances and Prometheus to about that
_SCRIPTS = 1000
_FULL = 0.9  # of maxmemory


def about_node(node: Node, facts: Facts) -> Iterator[Finding]:
    """Everything about one server, in the order in which it is told."""
    if not node.round_trips:
        yield Finding(
            "reachable",
            ERROR,
            f"no answer: {node.clock.said if isinstance(node.clock, Denied) else 'none'}",
            "names that live there can be neither taken nor renewed",
            "start it, or let the network pass",
            node.where,
        )
        return
    yield _round_trip(node)
    yield _server(node)
    yield _release(node)
    yield from _looked_at(node)
    info = {} if isinstance(node.info, Denied) else node.info
    config = {} if isinstance(node.config, Denied) else node.config
    yield _role(node, info)
    if policy := info.get("maxmemory_policy") or config.get("maxmemory-policy"):
        yield _eviction(node, policy, int(info.get("maxmemory", "0")), int(info.get("used_memory", "0")))
    if info:
        yield _persistence(node, info, config)
        yield from _replicas(node, info, config, facts.behind)
        if (scripts := int(info.get("number_of_cached_scripts", "0"))) > _SCRIPTS:
            yield Finding(
                "scripts",
                WARNING,
                f"{scripts} scripts are cached",
                "somebody sends a new script body for each call, and the server's memory grows; ours are fewer than 20",
                "find who does it, let them pass values as ARGV, then SCRIPT FLUSH (this library sends its own again)",
                node.where,
            )
        else:
            yield Finding(
                "scripts", OK, f"{scripts} scripts are cached", "a lost cache costs a round trip each", "", node.where
            )
    yield _clock(node)
    yield _permanent(node, facts.prefix)


def _round_trip(node: Node) -> Finding:
    p50, p99 = (percentile(node.round_trips, share) * 1000 for share in (0.5, 0.99))
    what = f"answers in {p50:.3g} ms (median), {p99:.3g} ms (p99 of {len(node.round_trips)})"
    return Finding("reachable", OK, what, "a renewal is one round trip", "", node.where)


def _server(node: Node) -> Finding:
    info = {} if isinstance(node.info, Denied) else node.info
    valkey = "valkey_version" in info or node.hello.get("server") == "valkey"
    version = info.get("valkey_version") or info.get("redis_version") or node.hello.get("version")
    kind = "Valkey" if valkey else "Redis"
    if version is None:
        return Finding(
            "server",
            NOTE,
            "a server of unknown version",
            "6.2 and newer are tested",
            "allow +info or +hello to see it",
            node.where,
        )
    if not valkey and tuple(map(int, version.split(".")[:2])) < (6, 2):
        return Finding(
            "server", WARNING, f"{kind} {version}", "older than what is tested: 6.2", "upgrade it", node.where
        )
    return Finding("server", OK, f"{kind} {version}", "6.2 and newer are tested", "", node.where)


def _release(node: Node) -> Finding:
    match node.native:
        case str(name):
            return Finding("release", OK, f"released by {name}", "one command instead of a script", "", node.where)
        case Denied():
            return Finding(
                "release",
                NOTE,
                "released by a script: the user may not use the server's own compare-and-delete",
                "the script does the same, and costs the server a little more",
                "allow +delex (Redis) or +delifeq (Valkey)",
                node.where,
            )
    return Finding(
        "release", OK, "released by a script", "the server has no compare-and-delete of its own", "", node.where
    )


def _looked_at(node: Node) -> Iterator[Finding]:
    for name, answer, what in (
        ("INFO", node.info, "eviction, persistence, replicas and cached scripts"),
        ("CONFIG GET", node.config, "snapshots and min-replicas-to-write"),
    ):
        if isinstance(answer, Denied):
            yield Finding(
                "denied",
                NOTE,
                f"{name} is not answered ({answer.said})",
                f"so {what} could not be looked at; the library itself doesn't need it",
                "run the doctor once as a user who may, or ask whoever runs the server",
                node.where,
            )


def _role(node: Node, info: Mapping[str, str]) -> Finding:
    role = info.get("role") or node.hello.get("role")
    if role in ("slave", "replica"):
        return Finding(
            "role",
            ERROR,
            "it is a replica",
            "no claim can be written there",
            "name the master, or better its sentinels (redis+sentinel://...)",
            node.where,
        )
    return Finding("role", OK, "it is a master" if role else "role unknown", "claims are written there", "", node.where)


def _eviction(node: Node, policy: str, most: int, used: int) -> Finding:
    if policy != "noeviction":
        return Finding(
            "eviction",
            ERROR if most else WARNING,
            f"maxmemory-policy {policy}" + ("" if most else ", without a maxmemory so far"),
            "a full server throws claims away while they are held (all of them have a ttl): two may hold a name",
            "set maxmemory-policy noeviction, or give claims a server of their own",
            node.where,
        )
    if most and used > _FULL * most:
        return Finding(
            "eviction",
            WARNING,
            f"{used / most:.0%} of maxmemory is used",
            "a full server goes on renewing, but takes no new claims: nobody can be elected",
            "raise maxmemory, or free some",
            node.where,
        )
    return Finding("eviction", OK, "maxmemory-policy noeviction", "no claim is thrown away", "", node.where)


def _persistence(node: Node, info: Mapping[str, str], config: Mapping[str, str]) -> Finding:
    for state in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(state, "ok") != "ok":
            return Finding(
                "persistence",
                ERROR,
                f"the last write to disk failed ({state}:{info[state]})",
                "a server that can't persist refuses writes (MISCONF): no renewal, no new claim",
                "look into its log and its disk",
                node.where,
            )
    if info.get("aof_enabled") == "1":
        fsync = config.get("appendfsync", "unknown")
        return Finding(
            "persistence",
            OK,
            f"append-only file, appendfsync {fsync}",
            "a restart remembers claims" + ("" if fsync == "always" else ", but for the last second or so"),
            "",
            node.where,
        )
    snapshots = config.get("save")
    return Finding(
        "persistence",
        NOTE,
        "no append-only file"
        + ("" if snapshots is None else ", no snapshots" if not snapshots else f", snapshots: {snapshots}"),
        "a restart forgets claims: their holders are stopped at their next renewal, and for up to ttl/3 another may"
        " work beside them. Tokens rise all the same, by the server's clock",
        "check the token where you write to (docs/fencing.md); appendonly yes makes it rare",
        node.where,
    )


def _replicas(node: Node, info: Mapping[str, str], config: Mapping[str, str], behind: str) -> Iterator[Finding]:
    if info.get("role") != "master":
        return
    count = int(info.get("connected_slaves", "0"))
    wanted = int(config.get("min-replicas-to-write", "0"))
    lines = [text for name, text in info.items() if name.startswith("slave") and name[5:].isdigit()]
    good = int(info.get("min_slaves_good_slaves", str(sum("state=online" in text for text in lines))))
    if wanted > good:
        yield Finding(
            "replicas",
            ERROR,
            f"min-replicas-to-write is {wanted}, and {good} are in step",
            "the server refuses writes (NOREPLICAS): no renewal, no new claim",
            "bring the replicas back, or lower the setting",
            node.where,
        )
    elif not count:
        yield Finding(
            "replicas",
            NOTE,
            "no replicas",
            "while the server is down nobody can be elected, and holders stop at their renew deadline",
            "fine if an outage may stop the work; else replicas behind Sentinel, or a QuorumStore",
            node.where,
        )
    else:
        yield Finding(
            "replicas",
            NOTE if wanted else WARNING,
            f"{count} replicas, {good} in step, min-replicas-to-write {wanted if config else 'unknown'}",
            "replication is asynchronous: a promoted replica may not know a claim, and two hold the name for up to"
            " ttl/3" + ("" if wanted else "; a master that is cut off goes on for its holder beside the new one"),
            ("" if wanted else "set min-replicas-to-write 1; ")
            + "check the token where you write to; a ReplicatedStore narrows it",
            node.where,
        )
    if count and behind == "server":
        yield Finding(
            "failover",
            WARNING,
            "there are replicas, and the URL names one server",
            "after a failover this address is a replica's, or nobody's, and no claim can be taken there",
            "name the sentinels (redis+sentinel://...), unless an address that follows the master is behind it",
            node.where,
        )
    elif behind != "server":
        yield Finding(
            "failover",
            OK,
            f"followed through {'Sentinel' if behind == 'sentinel' else 'the cluster'}",
            "candidates find the new master by themselves",
            "",
            node.where,
        )


def _clock(node: Node) -> Finding:
    if isinstance(node.clock, Denied):
        return Finding(
            "clock",
            NOTE,
            f"TIME is not answered ({node.clock.said})",
            "the server's clock could not be compared",
            "allow +time",
            node.where,
        )
    if abs(node.clock) > _CLOCKS:
        side = "ahead of" if node.clock > 0 else "behind"
        return Finding(
            "clock",
            WARNING,
            f"the server's clock is {abs(node.clock):.3g} s {side} this machine's",
            "ttls don't mind, but tokens start at the server's time: a failover to a server whose clock is behind may"
            " repeat them; and the alerts compare instants of different machines",
            "synchronise the clocks of all servers, instances and Prometheus",
            node.where,
        )
    return Finding(
        "clock",
        OK,
        f"the server's clock differs by {node.clock * 1000:+.1f} ms",
        "tokens survive a failover as far as the clocks agree",
        "",
        node.where,
    )


def _permanent(node: Node, prefix: str) -> Finding:
    scan = node.scan
    if isinstance(scan, Denied):
        return Finding(
            "permanent-keys",
            NOTE,
            f"SCAN is not answered ({scan.said})",
            "keys without a ttl under the prefix could not be looked for; the library itself doesn't need it",
            "run the doctor once as a user who may",
            node.where,
        )
    seen = f"{scan.looked_at} keys under {prefix}" + ("" if scan.whole else ", not all in the time there was")
    if scan.count:
        return Finding(
            "permanent-keys",
            ERROR,
            f"{scan.count} keys without a ttl ({seen}): {', '.join(scan.examples)}",
            "another program wrote them: a claim without a ttl never ends, so its name can't be taken",
            "delete them, and find who uses this prefix",
            node.where,
        )
    return Finding(
        "permanent-keys", OK, f"all have a ttl ({seen})", "what is left behind ends by itself", "", node.where
    )
