"""Fill the generated parts of the docs: the state diagram from the table in `_core/hold.py`, the scripts from their files.

Run it after changing either (`make docs`); a test fails when it was forgotten. With --check it changes nothing and
exits with 1 if something is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from aioelect._core.hold import TABLE

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
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


def filled(text: str) -> str:
    """The page with every generated part made anew."""
    parts = {"states": diagram(), **{name: script(name) for name in ("acquire", "renew", "release")}}
    for name, part in parts.items():
        mark = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = mark.subn(lambda found, part=part: found[1] + part + "\n" + found[2], text)
        if count != 1:
            raise SystemExit(f"{PAGE.name}: {count} places for the generated part {name!r}; wanted 1")
    return text


def main() -> int:
    """Write the page, or check it."""
    before = PAGE.read_text()
    after = filled(before)
    if "--check" in sys.argv:
        if before != after:
            print(f"{PAGE} is out of date: run 'make docs'", file=sys.stderr)
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
