"""What tells one run from another: its key, its seed, its identity and its id.

The *key* is what the run is started with: the data of a PRNG key, or a number of any size.
The *seed* is the number that people read.

                          key                     seed
    jax.random.key(7)     (0, 7)                  7
    a key from `split`    (928981903, 3453687069) 3989946895414531357, from all of its bits
    5                     (5,)                    5
    2**32 + 5             (5, 1, 0)               4294967301
    -1                    (2**32-1, 2**32-1, 1)   -1

A number that does not fit into a word of 32 bits has three, of which the last says whether
it is negative. No PRNG key has so many, so that no number is taken for a key.

Key and configuration together are the *identity* of a run: a run is the same in another
session if both are.

The *id* is its number on the device, which travels through the program as `state.run`. It
is a hash of the identity and the *launch*, a random text on which all processes of a
program agree for each call of `init`. So all processes compute the same ids without
exchanging them one by one, and an id in a checkpoint of a dead process does not match a run
of this one.
"""

import hashlib
import itertools as it
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# The words of a PRNG key or a number.
Key = tuple[int, ...]


def run_key(words: Sequence[int]) -> Key:
    """Return the key with these words, a small number as one word."""
    if len(words) == 3 and not words[1] and not words[2]:
        return (words[0],)
    return tuple(words)


def run_seed(key: Key) -> int:
    """Return the number that a key was made from, or else its data as one number."""
    if len(key) == 3:
        low, high, is_negative = key
        return (high << 32) + low - (is_negative << 64)
    # `jax.random.key(seed, impl="rbg")` has the words of the seed twice.
    half = len(key) // 2
    words = key[:half] if len(key) == 4 and key[:half] == key[half:] else key
    seed = 0
    for word in words:
        seed = (seed << 32) + word
    return seed


def is_seed_known(key: Key) -> bool:
    """Return whether a key is a number, or looks like one that was made from a seed.

    Of the keys that come from `jax.random.split`, one in 2**32 looks so, too.
    """
    return len(key) in (1, 3) or 0 <= run_seed(key) < 2**32


def run_name(key: Key) -> str:
    """Return the data of a key as text, for runs without a better name."""
    return str(run_seed(key)) if len(key) == 3 else "-".join(map(str, key))


def run_identity(key: Key, config: Mapping[str, Any]) -> str:
    """Return a text that differs where a key or a plain configuration differs."""
    text = _ENCODER.encode([key, config])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def candidate_ids(launch: str, identity: str) -> Iterator[int]:
    """Yield numbers of 31 bits for a run: its id is the first that is not taken."""
    for i in it.count():
        yield zlib.crc32(f"{launch}{identity}{i}".encode()) % 2**31


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
