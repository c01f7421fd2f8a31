"""`aioelect bench`: figures of a given server."""

import json
import signal

import pytest

from support.programs import LIMIT, Program, outcome
from support.proxy import ThreadedProxy
from support.servers import Server
from support.wait import until

pytestmark = pytest.mark.timeout(120)
QUICK = ("--rounds", "10", "--coroutines", "3")


async def test_the_figures_have_these_fields_and_nothing_is_left_behind(server: Server) -> None:
    code, out, err = await outcome("bench", "--json", *QUICK, url=server.url)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {name: found[name] for name in ("address", "rounds", "coroutines")} == {
        "address": server.url,
        "rounds": 10,
        "coroutines": 3,
    }
    spread = {"p50", "p95", "p99"}
    figures = {name: set(part) for name, part in found.items() if isinstance(part, dict)}
    assert figures == {
        "round_trip": spread,
        "acquire_release": spread,
        "crowd": {*spread, "per_second"},
        "hand_over": spread,
    }
    assert server.call("KEYS", "*") == []


async def test_an_answer_that_takes_long_shows_in_every_figure(server: Server) -> None:
    with ThreadedProxy(server) as proxy:
        proxy.run(lambda: [proxy.request(name, times=None).delay(0.02) for name in ("PING", "EVALSHA")])
        _, out, _ = await outcome("bench", "--json", *QUICK, url=proxy.url)
    found = json.loads(out)
    assert found["round_trip"]["p50"] >= 0.02
    assert found["acquire_release"]["p50"] >= 0.02
    assert found["hand_over"]["p50"] >= 0.02


async def test_for_people_it_is_a_table(server: Server) -> None:
    code, out, err = await outcome("bench", *QUICK, url=server.url)
    assert (code, err) == (0, "")
    for title in ("PING", "acquire and release", "many at once", "next holder"):
        assert title in out


async def test_a_server_that_is_not_there_is_told() -> None:
    code, out, err = await outcome("bench", url="redis://user:s3cr3t@127.0.0.1:1")
    assert (code, out) == (69, "")
    assert err.startswith("aioelect: ") and "s3cr3t" not in err


async def test_ctrl_c_ends_it_also_while_two_hand_the_lock_over(server: Server) -> None:
    with Program("bench", "--rounds", "10000", "--coroutines", "1", "--redis", server.url) as program:
        await until(lambda: server.call("PUBSUB", "CHANNELS"), LIMIT)  # somebody waits: two take turns
        program.process.send_signal(signal.SIGINT)
        assert (await program.ended(), program.out, program.err) == (130, "", "")
    assert server.call("KEYS", "*") == []
