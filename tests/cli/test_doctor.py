"""`aioelect doctor` against real servers that are set up wrong on purpose: one test for each finding."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aioelect import _clock
from aioelect.cli.doctor.facts import Facts
from aioelect.cli.doctor.findings import diagnose, worst
from aioelect.cli.doctor.probes import examine
from aioelect.cli.doctor.severity import Finding, Severity
from conftest import MakeServer
from support import servers
from support.proxy import Proxy
from support.servers import Server
from support.topologies import Cluster, SentinelGroup, start_replica_of
from support.wait import until

RUN = "from aioelect.cli import main; main()"
OK, NOTE, WARNING, ERROR = Severity
MINIMAL = "resetkeys ~aioelect:* resetchannels &aioelect:* -@all +evalsha +eval +get +set +del +pttl +pexpire +hmget"
REST = "+hset +time +publish +subscribe +unsubscribe +ping +zadd +zrem +zrangebyscore +zremrangebyscore"
RIGHTS = [*MINIMAL.split(), *REST.split(), "+zremrangebyrank"]


async def facts_of(url: str, prefix: str = "aioelect", ttl: float = 15.0, pause: float = 0.0) -> Facts:
    return await examine(url, prefix=prefix, ttl=ttl, pause=pause)


async def found(url: str, **options: float) -> dict[str, Finding]:
    """The worst finding of each kind."""
    findings = diagnose(await facts_of(url, **options))  # type: ignore[arg-type]
    assert all(f.what and f.why and (f.do or f.severity is OK) for f in findings), "each says what to do"
    return {finding.id: finding for finding in sorted(findings, key=lambda f: f.severity)}


def run(url: str, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, "doctor", *options],
        env={**os.environ, "AIOELECT_REDIS": url, "COLUMNS": "160", **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@contextlib.contextmanager
def user(server: Server, *words: str) -> Iterator[str]:
    """The URL of a restricted user."""
    server.call("ACL", "SETUSER", "probed", "on", ">s3cret", *words)
    try:
        yield server.url.replace("://", "://probed:s3cret@")
    finally:
        server.call("ACL", "DELUSER", "probed")


async def test_a_good_server_has_no_warning_and_nothing_is_left_there(any_server: Server) -> None:
    findings = await found(any_server.url)
    assert [f for f in findings.values() if f.severity > NOTE] == []
    kind = "Valkey" if any_server.binary.is_valkey else "Redis"
    assert findings["server"].what == f"{kind} {'.'.join(map(str, any_server.binary.version))}"
    native = {"redis-8.10": "DELEX", "valkey-9.1": "DELIFEQ"}.get(any_server.binary.key, "a script")
    assert findings["release"].what == f"released by {native}"
    assert findings["claim"].severity is OK and findings["channels"].severity is OK
    assert any_server.call("DBSIZE") == 0
    assert any_server.call("PUBSUB", "CHANNELS") == []
    await until(lambda: any_server.call("CLIENT", "LIST").count(b" addr=") == 1)


def test_the_report_as_json_has_these_fields_and_the_exit_code_is_that_of_the_worst(server: Server) -> None:
    done = run(server.url, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(report) == [
        *("address", "prefix", "ttl", "pause", "least_ttl", "advised_ttl", "round_trips", "worst", "findings"),
    ]
    assert [list(f) for f in report["findings"]] == [["id", "severity", "where", "what", "why", "do"]] * len(
        report["findings"]
    )
    assert [list(times) for times in report["round_trips"].values()] == [["p50", "p95", "p99"]]
    assert [f["id"] for f in report["findings"]] == [
        *("reachable", "server", "release", "role", "eviction", "persistence", "replicas", "scripts", "clock"),
        *("permanent-keys", "ttl", "rights", "claim", "channels", "client", "python"),
    ]
    assert run(server.url, "--ttl", "2").returncode == 1
    table = run(server.url, "--ttl", "2", "--pause", "5")
    assert table.returncode == 2
    assert "take 22 s" in " ".join(table.stdout.split())
    assert run(server.url, "--ttl", "0").returncode == 64


async def test_what_to_do_is_shown_whole_in_a_narrow_terminal(server: Server) -> None:
    done = run(server.url, COLUMNS="80")
    assert done.returncode == 0
    assert "…" not in done.stdout


async def test_a_server_that_is_not_there(make_server: MakeServer) -> None:
    server = make_server()
    server.kill()
    findings = await found(server.url)
    assert findings["reachable"].severity is ERROR
    assert set(findings) == {"reachable", "client", "python"}


def test_a_wrong_password_is_told_and_no_password_is_ever_shown(make_server: MakeServer) -> None:
    server = make_server(requirepass="r1ght")
    for url, code in ((":wr0ng@", 2), (":r1ght@", 0), ("", 2)):
        for options in ([], ["--json"]):
            done = run(server.url.replace("://", f"://{url}"), *options)
            assert done.returncode == code, done.stdout + done.stderr
            assert "wr0ng" not in done.stdout + done.stderr and "r1ght" not in done.stdout + done.stderr
            assert ("password" in done.stdout) == (code == 2)


async def test_round_trips_and_pauses_that_are_too_long_for_the_ttl(server: Server) -> None:
    async with Proxy(server) as proxy:
        proxy.reply("PONG", times=None).delay(0.05)
        rule = proxy.request("PING", times=None).delay(0.05)
        findings = await found(proxy.url, ttl=0.4)
        rule.remove()
    assert findings["ttl"].severity is ERROR
    assert "take 10 s" in findings["ttl"].do
    assert (await found(server.url, pause=4.0))["ttl"].severity is WARNING
    assert (await found(server.url, pause=8.0))["ttl"].severity is ERROR


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_claims(make_server: MakeServer, policy: str) -> None:
    assert (await found(make_server(maxmemory_policy=policy).url))["eviction"].severity is WARNING
    server = make_server(maxmemory_policy=policy, maxmemory="100mb")
    assert (await found(server.url))["eviction"].severity is ERROR


async def test_a_server_that_is_full_and_still_examined(make_server: MakeServer) -> None:
    server = make_server(maxmemory="1")
    findings = await found(server.url)
    assert findings["eviction"].severity is WARNING
    assert findings["claim"].severity is ERROR and "maxmemory" in findings["claim"].what
    assert findings["rights"].severity is OK
    assert server.call("DBSIZE") == 0


async def test_what_survives_a_restart(make_server: MakeServer) -> None:
    assert (await found(make_server().url))["persistence"].severity is NOTE
    assert (await found(make_server(appendonly="yes").url))["persistence"].severity is OK


async def test_a_server_whose_disk_fails(make_server: MakeServer) -> None:
    server = make_server(save="3600 1", dbfilename="dump")
    (server.folder / "dump").mkdir()  # nothing can be renamed to it
    server.call("SET", "something", "1", "PX", "60000")
    server.call("BGSAVE")
    await until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    findings = await found(server.url)
    assert findings["persistence"].severity is ERROR and findings["claim"].severity is ERROR


async def test_replicas_that_nobody_follows_and_a_replica_in_place_of_the_master(make_server: MakeServer) -> None:
    master = make_server()
    with contextlib.closing(start_replica_of(master)) as replica:
        findings = await found(master.url)
        assert findings["replicas"].severity is WARNING and "min-replicas-to-write 1" in findings["replicas"].do
        assert findings["failover"].severity is WARNING
        findings = await found(replica.url)
        assert findings["role"].severity is ERROR and findings["claim"].severity is ERROR


async def test_too_few_replicas(make_server: MakeServer) -> None:
    findings = await found(make_server(min_replicas_to_write="1").url)
    assert findings["replicas"].severity is ERROR and findings["claim"].severity is ERROR


async def test_clocks_that_differ(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = _clock.wall
    monkeypatch.setattr(_clock, "wall", lambda: wall() - 30)
    clock = (await found(server.url))["clock"]
    assert clock.severity is WARNING and "30 s ahead" in clock.what


async def test_info_config_client_and_scan_that_are_denied(any_server: Server) -> None:
    with user(any_server, *RIGHTS) as url:
        findings = diagnose(await facts_of(url))
    assert worst(findings) is NOTE
    denied = [f.what for f in findings if f.id in ("denied", "permanent-keys")]
    assert [text.split(" is ")[0] for text in denied] == ["INFO", "CONFIG GET", "SCAN"]
    assert {"claim", "rights", "channels"} <= {f.id for f in findings if f.severity is OK}


@pytest.mark.parametrize("word", [word for word in RIGHTS if word.startswith("+")])
async def test_a_right_that_is_missing_is_named_and_nothing_outlives_a_few_seconds(server: Server, word: str) -> None:
    with user(server, *(other for other in RIGHTS if other != word)) as url:
        findings = await found(url)
    told = findings["channels" if word in ("+publish", "+subscribe") else "rights"]
    if word == "+unsubscribe":  # the end of a subscription; nothing depends on it
        assert told.severity is OK
    else:
        assert told.severity is (WARNING if told.id == "channels" or word.startswith("+z") else ERROR)
        assert word in told.do
    for key in server.call("KEYS", "*"):
        assert 0 < server.call("PTTL", key) <= 5000


async def test_a_prefix_that_the_user_may_not_use(server: Server) -> None:
    with user(server, *RIGHTS) as url:
        findings = {f.id: f for f in diagnose(await facts_of(url, prefix="other"))}
    assert findings["rights"].do == "allow the keys ~other:*"


async def test_channels_that_are_denied(server: Server) -> None:
    with user(server, *RIGHTS, "resetchannels") as url:
        findings = await found(url)
    assert findings["channels"].severity is WARNING and findings["claim"].severity is OK


async def test_a_native_release_that_is_denied(server: Server) -> None:
    if server.binary.key not in ("redis-8.10", "valkey-9.1"):
        pytest.skip("the server has none")
    with user(server, *RIGHTS) as url:
        assert (await found(url))["release"].severity is NOTE


async def test_a_script_cache_that_somebody_fills(make_server: MakeServer) -> None:
    server = make_server()
    for number in range(1100):
        server.call("SCRIPT", "LOAD", f"return {number}")
    assert (await found(server.url))["scripts"].severity is WARNING


@pytest.mark.leaves_keys("that is what is looked for")
async def test_keys_without_a_ttl_under_the_prefix(server: Server) -> None:
    server.call("SET", "aioelect:{old}", "1")
    server.call("SET", "aioelect2:{another}", "1")
    permanent = (await found(server.url))["permanent-keys"]
    assert permanent.severity is ERROR and "1 keys" in permanent.what and "aioelect:{old}" in permanent.what


async def test_a_cluster_with_slots_that_nobody_serves_and_one_named_as_a_server(make_server: MakeServer) -> None:
    server = make_server(cluster_enabled="yes")
    server.call("CLUSTER", "ADDSLOTS", *range(100))
    url = server.url.replace("redis://", "redis+cluster://")
    findings = await found(url)
    assert findings["cluster"].severity is ERROR and "100 of 16384" in findings["cluster"].what
    assert (await found(server.url))["cluster"].severity is ERROR
    server.call("CLUSTER", "ADDSLOTS", *range(100, 16384))
    await until(lambda: b"cluster_state:ok" in server.call("CLUSTER", "INFO"), 10)
    findings = await found(url)
    assert findings["cluster"].severity is NOTE and "without a replica" in findings["cluster"].what
    assert findings["claim"].severity is OK
    assert server.call("DBSIZE") == 0


def test_a_whole_cluster_is_examined_master_by_master() -> None:
    with Cluster(servers.newest()) as cluster:
        done = run(cluster.masters[1].url.replace("redis://", "redis+cluster://"), "--json")
        report = json.loads(done.stdout)
        places = {f"127.0.0.1:{master.port}" for master in cluster.masters}
        assert set(report["round_trips"]) == places
        assert {f["where"] for f in report["findings"] if f["id"] == "clock"} == places
        (told,) = [f for f in report["findings"] if f["id"] == "cluster"]
        assert told["severity"] == "note"
        assert all(str(master.port) in told["what"] for master in cluster.masters[1:])
        assert [f["severity"] for f in report["findings"] if f["id"] in ("claim", "channels")] == ["ok", "ok"]
        assert [master.call("DBSIZE") for master in cluster.masters] == [0, 0, 0]


def test_a_master_behind_sentinels_is_followed() -> None:
    with SentinelGroup(servers.newest()) as group:
        done = run(f"redis+sentinel://127.0.0.1:{group.sentinels[0].port}/{group.name}", "--json")
        severities = {f["id"]: f["severity"] for f in json.loads(done.stdout)["findings"]}
        assert (severities["failover"], severities["claim"], severities["replicas"]) == ("ok", "ok", "warning")
        assert done.returncode == 1
        assert group.master.call("DBSIZE") == 0


async def test_a_client_that_repeats_commands_and_a_python_that_loses_cancellations(server: Server) -> None:
    findings = await found(f"{server.url}?retry_on_timeout=yes&socket_timeout=2")
    assert findings["client"].severity is WARNING
    assert findings["python"].severity is (WARNING if sys.version_info < (3, 12) else OK)
