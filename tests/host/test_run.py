"""What identifies a run, and the names that it has for people and for files."""

import dataclasses

import jax
import numpy as np
import pytest

from lox.loggers import Run
from lox_host.runs.run_id import is_seed_known, run_key


def run(key=(0, 7), name="a run", **fields):
    config = fields.pop("config", {})
    return Run(0, name, tuple(key), config, 1e9, "launch", **fields)


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_the_seed_of_a_prng_key_is_the_number_it_was_made_from(seed, impl):
    key = jax.random.key(np.uint32(seed), impl=impl)
    words = run_key(jax.random.key_data(key).tolist())
    assert run(words).seed == seed
    assert is_seed_known(words)


def test_a_key_from_split_has_no_seed_but_a_number():
    first, second = (
        jax.random.key_data(key) for key in jax.random.split(jax.random.key(0))
    )
    assert not is_seed_known(tuple(first.tolist()))
    high, low = first.tolist()
    assert run(first.tolist()).seed == high * 2**32 + low
    assert run(first.tolist()).seed != run(second.tolist()).seed


def test_identity_is_key_and_config():
    one = run(config={"lr": 0.1, "net": {"width": 4}})
    same = dataclasses.replace(one, id=3, name="other", start=0.0, resumed=True)
    swapped = dataclasses.replace(one, config={"net": {"width": 4}, "lr": 0.1})
    assert one.identity == same.identity == swapped.identity
    others = [
        run((0, 8), config=one.config),
        run(config={"lr": 0.1, "net": {"width": 5}}),
        run(config={"lr": np.nextafter(0.1, 1), "net": {"width": 4}}),
        run(config={"lr": "0.1", "net": {"width": 4}}),
        run(),
    ]
    assert len({one.identity, *(other.identity for other in others)}) == 6


@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        ("lr=0.001-3", "lr=0.001-3"),
        ("../../etc/passwd", "_.._etc_passwd"),
        (".hidden", "hidden"),
        ("a/b c\n\0", "a_b_c__"),
        ("Überläufer", "Überläufer"),
        ("", "run"),
        ("x" * 300, "x" * 200),
    ],
)
def test_file_names_lead_nowhere_else(name, file_name):
    assert run(name=name).file_name == file_name


def test_the_runs_of_several_processes_have_different_files():
    assert run(name="a", process=2).file_name == "a-process-2"
