"""All cases, one file for each question; importing this makes them known, in the order in which they run."""

import importlib

for _name in (
    "pair",
    "layers",
    "coroutines",
    "one_name",
    "processes",
    "hand_over",
    "take_over",
    "idle",
    "held",
    "herd",
    "stopping",
    "hung",
    "importing",
    "renewal",
    "growth",
):
    importlib.import_module(f"bench.cases.{_name}")
