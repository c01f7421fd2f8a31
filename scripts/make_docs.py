"""Fill the generated parts of the docs.

The state diagram comes from the table in `_core/hold.py`, the scripts, the examples and the ACL line from their files,
the measured figures from docs/performance.json. Run it after changing one of them (`make docs`); a test fails when it
was forgotten.
With --check it changes nothing and exits with 1 if something is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aioelect._core.hold import TABLE

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

import bench.cases  # noqa: E402, F401 - importing makes them known
from bench import page, results, stage  # noqa: E402

DOCS = ROOT / "docs"
SCRIPTS = ROOT / "aioelect" / "_redis" / "lua"


def diagram() -> str:
    """The transitions as a mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Idle"]
    for state, event, after in TABLE:
        if event == "any":
            continue
        target, _, reason = after.partition(" ")
        label = f"{event} {reason}".strip()
        lines.append(f"    {state} --> {target}: {label}")
    lines += ["    Releasing --> [*]", "    Ended --> [*]", "```"]
    return "\n".join(lines)


def script(name: str) -> str:
    """One script, whole."""
    return f"```lua\n{(SCRIPTS / f'{name}.lua').read_text().strip()}\n```"


def example(name: str) -> dict[str, str]:
    """One example, whole."""
    return {name: f"```python\n{(ROOT / 'examples' / f'{name}.py').read_text().strip()}\n```"}


def pages() -> dict[Path, dict[str, str]]:
    """What is generated, by page and mark."""
    scripts = {
        name: script(name) for name in ("acquire", "renew", "release", "ask", "describe", "mark", "evict", "attend")
    }
    acl = f"```\n{(DOCS / 'acl.txt').read_text().strip()}\n```"
    run, cases = results.load(DOCS / "performance.json"), stage.cases()
    return {
        DOCS / "architecture.md": {"states": diagram(), **scripts},
        DOCS / "critical-section.md": example("critical_section"),
        DOCS / "nightly.md": example("nightly"),
        DOCS / "operations.md": {"acl": acl},
        DOCS / "performance.md": {
            "where": page.where(run),
            "targets": page.targets(run),
            "growth": page.growth(run),
            "figures": page.figures(run, cases),
            "definitions": page.definitions(run, cases),
        },
        DOCS / "scheduler.md": example("scheduler"),
        DOCS / "web-service.md": example("fastapi_app") | example("aiohttp_app"),
        ROOT / "README.md": {"performance": page.readme(run)},
    }


def filled(path: Path, parts: dict[str, str]) -> str:
    """A page with every generated part made anew."""
    text = path.read_text()
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (mark and end):
            raise SystemExit(f"{path.name} has no place for the generated part {name!r}")
        text = f"{before}{mark}{part}\n{end}{after}"
    return text


def main() -> int:
    """Write the pages, or check them."""
    stale = {path: text for path, parts in pages().items() if (text := filled(path, parts)) != path.read_text()}
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path} is out of date: run 'make docs'", file=sys.stderr)
        else:
            path.write_text(text)
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
