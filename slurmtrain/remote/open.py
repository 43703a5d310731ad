"""From a URL to the storage behind it."""

from __future__ import annotations

from typing import Any

from slurmtrain.errors import RemoteError
from slurmtrain.remote.faults import explain
from slurmtrain.remote.known_hosts import build_policy
from slurmtrain.remote.model import Remote
from slurmtrain.remote.pace import Pace
from slurmtrain.remote.plain import PlainRemote
from slurmtrain.remote.s3 import S3Remote, client_options

_SOCKET_S = 30


def open_remote(url: str, pace: Pace, *, endpoint: str | None = None, profile: str | None = None) -> Remote:
    """The storage of ``url``; nothing is asked yet. Raises ``RemoteError`` where the software for it is missing."""
    scheme = url.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise RemoteError(f"shipping to {url} needs fsspec: pip install 'slurmtrain[ship]'") from None
    s3 = scheme in {"s3", "s3a"}
    options: dict[str, Any] = client_options(endpoint, profile) if s3 else {"skip_instance_cache": True}
    try:
        if scheme in {"sftp", "ssh"}:
            options |= {"timeout": _SOCKET_S, "banner_timeout": _SOCKET_S, "host_key_policy": build_policy()}
        filesystem, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as exc:
        more = f"shipping to {url} needs more software ({exc}): for S3, pip install 'slurmtrain[ship]'"
        raise RemoteError(more) from exc
    except TypeError as exc:
        raise RemoteError(f"{url}: this fsspec is too old to check the server's host key: upgrade fsspec") from exc
    except Exception as exc:
        raise explain(exc, url) from exc
    return S3Remote(filesystem, url, pace) if s3 else PlainRemote(filesystem, url, str(root), pace)
