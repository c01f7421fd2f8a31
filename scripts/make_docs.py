"""Fill the generated parts of the docs.

The state diagram comes from the table in `_core/hold.py`, the scripts and the ACL line from their files. Run it after
changing one of them (`make docs`); a test fails when it was forgotten. With --check it changes nothing and exits with 1
if something is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aioelect._core.hold import TABLE

ROOT = Path(__file__).resolve().parent.parent
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


def pages() -> dict[Path, dict[str, str]]:
    """What is generated, by page and mark."""
    scripts = {name: script(name) for name in ("acquire", "renew", "release", "ask", "describe")}
    acl = f"```\n{(DOCS / 'acl.txt').read_text().strip()}\n```"
    return {DOCS / "architecture.md": {"states": diagram(), **scripts}, DOCS / "operations.md": {"acl": acl}}


def filled(page: Path, parts: dict[str, str]) -> str:
    """A page with every generated part made anew."""
    text = page.read_text()
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (mark and end):
            raise SystemExit(f"{page.name} has no place for the generated part {name!r}")
        text = f"{before}{mark}{part}\n{end}{after}"
    return text


def main() -> int:
    """Write the pages, or check them."""
    stale = {page: text for page, parts in pages().items() if (text := filled(page, parts)) != page.read_text()}
    for page, text in stale.items():
        if "--check" in sys.argv:
            print(f"{page} is out of date: run 'make docs'", file=sys.stderr)
        else:
            page.write_text(text)
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
