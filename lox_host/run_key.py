"""The key that a run is started with: the data of a PRNG key, or a number of any size.

The id of a run is made from its key in `run_registry.py`.

    PRNG key        (0, 7)                 named 0-7
    5               (5,)                   named 5
    2**32 + 5       (5, 1, 0)              named 4294967301
    -1              (2**32-1, 2**32-1, 1)  named -1

A number that does not fit into a word of 32 bits has three, of which the last says whether
it is negative. No PRNG key has so many, so that no number is taken for a key.
"""

from collections.abc import Sequence

# The words of a PRNG key or a number.
Key = tuple[int, ...]


def run_key(words: Sequence[int]) -> Key:
    """Return the key with these words, a small number as one word."""
    if len(words) == 3 and not words[1] and not words[2]:
        return (words[0],)
    return tuple(words)


def run_name(key: Key) -> str:
    """Return what a run with this key is called. Empty if it has none."""
    if len(key) != 3:
        return "-".join(map(str, key))
    low, high, is_negative = key
    return str((high << 32) + low - (is_negative << 64))
