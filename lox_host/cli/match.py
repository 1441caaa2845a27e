"""What `-k KEY` means: a key, what is in its tree, and keys that begin like a folder."""


def within(name: str, key: str) -> bool:
    """Whether a name is a key, or stands below it: `loss/policy` below `loss`."""
    return name == key or name.startswith(f"{key}/")
