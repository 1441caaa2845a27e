"""Stores on object storage: `s3://`, `gs://`, `az://`, `file://`. No JAX.

    write    rows -> session in the spool, on this disk -> Uploader -> Parquet objects
    read     objects -> refresh_store -> mirror, a folder on this disk -> lox_host.store

To write, rows go to an ordinary session in the spool, and an `Uploader` turns them into
Parquet objects. `push_others` does that for processes that were killed. To read,
`refresh_store` keeps a local folder up to date, and the readers of `lox_host.store` open it
like any other store. They fetch segments when they need them.

Given an address, `lox_host.store` calls `is_store`, `refresh_store`, `refresh_session`,
`fetch_segments` and `save_runs` of this package.
"""

from lox_host.remote.bucket import Bucket as Bucket, BucketError as BucketError
from lox_host.remote.compact import Compacted as Compacted, compact as compact
from lox_host.remote.find import expand as expand
from lox_host.remote.mirror import (
    fetch_segments as fetch_segments,
    is_store as is_store,
    refresh_session as refresh_session,
    refresh_store as refresh_store,
)
from lox_host.remote.push import (
    Pushed as Pushed,
    push_others as push_others,
    spooled_urls as spooled_urls,
)
from lox_host.remote.remote_paths import (
    object_url as object_url,
    spool_folder as spool_folder,
)
from lox_host.remote.remove_sessions import begin_remote as begin_remote
from lox_host.remote.saving import save_runs as save_runs
from lox_host.remote.uploader import Uploader as Uploader
