"""Print pip constraints that pin each core dependency to the lowest version that pyproject.toml admits."""

import re
import sys
import tomllib
from pathlib import Path

with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
    dependencies: list[str] = tomllib.load(file)["project"]["dependencies"]

for dependency in dependencies:
    match = re.match(r"([\w-]+)(?:\[[\w,-]+\])?\s*>=\s*([\w.]+)", dependency)
    if match is None:
        sys.exit(f"no lower bound in pyproject.toml: {dependency}")
    print(f"{match[1]}=={match[2]}")
