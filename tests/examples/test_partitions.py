"""examples/partitions.py: three copies, one killed and one stopped; no order is lost, done twice or out of its turn."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from support.examples import Example
from support.servers import Server
from support.wait import until


@pytest.mark.leaves_keys("the example's orders are data, and stay")
async def test_p7_each_stream_keeps_its_order_and_loses_nothing_whoever_dies(server: Server, tmp_path: Path) -> None:
    def start(*arguments: str) -> Example:
        return stack.enter_context(Example(tmp_path, "partitions.py", server.url, *arguments, env={}))

    def done() -> list[list[str]]:
        lists = [server.call("LRANGE", f"example:{{orders:{number}}}:done", 0, -1) for number in range(4)]
        return [[order.decode() for order in orders] for orders in lists]

    with ExitStack() as stack:
        copies = [start() for _ in range(3)]
        for copy in copies:
            await copy.says("consumed here")  # each has its share
        for deed in (copies[0].process.kill, copies[1].process.terminate):
            producing = start("400")
            deed()
            assert await producing.ended() == 0, producing.output
        await until(lambda: sum(map(len, done())) >= 800, 30)
        assert await copies[1].ended() == 0 and copies[1].output.endswith("has left\n"), copies[1].output
        copies[2].process.terminate()
        assert await copies[2].ended() == 0, copies[2].output
        assert [copy.errors for copy in copies] == ["", "", ""]
    for number, orders in enumerate(done()):
        expected = [f"order {n} of customer {n % 10}" for n in range(400) if n % 10 % 4 == number]
        assert orders == expected * 2
    assert server.call("EXISTS", "aioelect:{example-orders}:members") == 0
