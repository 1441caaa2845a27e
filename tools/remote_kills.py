"""Kill writers of object storage hundreds of times; `make kills` runs this.

`--disturbances 300` says how many kills and interruptions, `--seed 1` which ones.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from support.object_server import ObjectServer, Proxy, environment
from support.remote_kills import disturb


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--disturbances", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    server, start = ObjectServer(), time.time()
    proxy = Proxy(server)
    try:
        server.make_bucket("kills")
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(environment(proxy.url, folder))
            tally = disturb(
                server, proxy, "s3://kills/exp1", pathlib.Path(folder), **vars(options)
            )
    finally:
        proxy.close()
        server.close()
    print(f"{tally.kills} writers and {tally.killed_pushes} pushes killed")
    print(f"interruptions: {dict(tally.interruptions)}")
    print(f"{tally.flushed} rows flushed before, {tally.rows} rows in the bucket")
    print(f"lost: {tally.lost}, twice: {tally.twice}, {time.time() - start:.0f} s")
    return int(bool(tally.lost or tally.twice))


if __name__ == "__main__":
    sys.exit(main())
