"""Readers for what is copied to remote storage: a URL without credentials, what, and how fast."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from slurmtrain.config import parsers as p
from slurmtrain.config.nodes import Node, Scalar, Sequence, describe, shown
from slurmtrain.config.problems import closest
from slurmtrain.core.spec import SHIPPED, parse_rate

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.ASCII)
_EXAMPLE = "a URL like s3://bucket/prefix"


def url(node: Node) -> str:
    """A folder in any storage that fsspec reaches. What holds a password or a token is refused."""
    value = str(p.text(_EXAMPLE, limit=1000)(node)).strip().rstrip("/")
    scheme, colon, rest = value.partition("://")
    if not colon or not _SCHEME.fullmatch(scheme) or not rest.strip("/"):
        raise ValueError(f"expected {_EXAMPLE}, got {shown(value)}")
    if "::" in value:
        raise ValueError(f"{shown(value)}: chained URLs cannot be shipped to")
    _refuse_credentials(value)
    if ".." in rest.split("/"):
        raise ValueError(f"{shown(value)} has .. in it")
    return value


def endpoint(node: Node) -> str:
    """The address of an S3 server."""
    value = str(p.text("an address like https://s3.example.org", limit=1000)(node)).strip()
    if not re.match(r"https?://[^/]+", value):
        raise ValueError(f"expected an address like https://s3.example.org, got {shown(value)}")
    _refuse_credentials(value)
    return value


def _refuse_credentials(value: str) -> None:
    """The job file is copied, shown and shipped: it is no place for a key."""
    try:
        parts = urlsplit(value)
        secret = parts.password or parts.query or (parts.username and not value.startswith(("sftp:", "ssh:")))
    except ValueError:
        raise ValueError(f"expected {_EXAMPLE}, got something that is no URL") from None
    if secret:
        raise ValueError(
            "credentials do not belong into a job file, which is copied and shown: leave them to the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or to a profile in ~/.aws/credentials"
        )


def rate(node: Node) -> str:
    """Bytes per second, ``20MB/s``; the text is kept."""
    value = p.word(node, "a rate like 20MB/s").strip()
    parse_rate(value)
    return value


def what(node: Node) -> tuple[str, ...]:
    """A list of the kinds of files; a single text may name one."""
    if isinstance(node, Scalar) and not node.is_null:
        node = Sequence((node,), node.place)
    if not isinstance(node, Sequence) or not node.items:
        raise ValueError(f"expected a list of {', '.join(SHIPPED)}, got {describe(node)}")
    words = [p.word(item) for item in node.items]
    for word in words:
        if word not in SHIPPED:
            near = closest(word, SHIPPED)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"expected {', '.join(SHIPPED)}, got {shown(word)}{hint}")
    return tuple(dict.fromkeys(words))
