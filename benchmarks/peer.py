"""Measure one peer; run by `peered.py` with the interpreter of the peer's environment."""

import importlib
import json
import sys

import jax
from _ways import PLAIN, ways_of_lox
from cases import CASES
from compared import measure
from peers import PEERS

# The first JAX that lox works on.
OLDEST = (0, 7, 2)


def main(name: str) -> None:
    """Print a line of JSON for each program that the peer can express."""
    peer = importlib.import_module(f"peers.{PEERS[name]}")
    for case, way in peer.WAYS.items():
        result = {"case": case, "jax": jax.__version__, "way": way.name}
        try:
            result |= figures(CASES[case], way, peer.OURS)
        except Exception as error:
            first, *_ = str(error).strip().splitlines() or [""]
            result["error"] = f"{type(error).__name__}: {first[:200]}"
        print(json.dumps(result), flush=True)


def figures(case, way, ours) -> dict:
    ways = {each.name: each for each in (*PLAIN[:2], way)}
    if jax.__version_info__ >= OLDEST:
        known = {each.name: each for each in ways_of_lox()}
        ways |= {name: known[name] for name in ours}
    measured = measure(case, ways, seconds=5.0)
    cells = [measured[name].cells() for name in (way.name, *ours) if name in measured]
    cells[0][0] += lost(case, way) if "lox.spool" in ours else ""
    return {"cells": cells}


def lost(case, way) -> str:
    """What does not come out of the program, though it does if carried by hand."""
    found, expected = (
        sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(*program)))
        for program in (
            (way.jitted(case, case.steps, case.seeds), case.keys()),
            (case.over_seeds(case.by_hand(case.steps)), case.keys()),
        )
    )
    return f", {expected - found} numbers are missing" if found < expected else ""


if __name__ == "__main__":
    main(sys.argv[1])
