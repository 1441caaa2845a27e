"""What is stored with a session of runs: the host, the code, JAX and its devices."""

import sys
from collections import Counter
from typing import Any

import jax
import jaxlib.version

from lox_host.runs.environment import host_environment


def environment() -> dict[str, Any]:
    """Return what is known of this process, as plain texts, numbers and dictionaries."""
    kinds = Counter(device.device_kind for device in jax.devices())
    return {
        **host_environment(),
        "lox": sys.modules["lox"].__version__,  # an import would be a cycle
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "devices": dict(kinds),
        "processes": jax.process_count(),
    }
