"""What an exception of fsspec, s3fs or botocore means to a person: one sentence, and whether trying again helps.

botocore is not imported here: its errors are told by the names of their classes and by S3's error codes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from slurmtrain.errors import RemoteBusyError, RemoteError

_NOT_NOW = frozenset(
    {
        "SlowDown", "503", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded",
        "TooManyRequests", "429", "InternalError", "500", "502", "504", "BadGateway", "GatewayTimeout",
        "RequestTimeout", "OperationAborted", "BandwidthLimitExceeded",
    }
)  # fmt: skip
_CREDENTIALS = {
    "InvalidAccessKeyId": "does not know the access key",
    "SignatureDoesNotMatch": "refuses the secret key: it does not belong to the access key",
    "ExpiredToken": "says that the credentials have expired: renew them, and shipping goes on",
    "ExpiredTokenException": "says that the credentials have expired: renew them, and shipping goes on",
    "TokenRefreshRequired": "says that the credentials have expired: renew them, and shipping goes on",
    "InvalidToken": "refuses the session token",
    "AccessDenied": "denies access: the credentials may not do this there",
    "AllAccessDisabled": "denies access: the account is disabled",
    "403": "denies access: the credentials may not do this there",
}
_CLASSES = {
    "NoCredentialsError": "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a "
    "profile of ~/.aws/credentials as ship.profile or AWS_PROFILE",
    "PartialCredentialsError": "the credentials are incomplete: an access key needs its secret key",
    "ProfileNotFound": "the profile is not in ~/.aws/config or ~/.aws/credentials",
    "TokenRetrievalError": "the credentials have expired: renew them, and shipping goes on",
    "SSOTokenLoadError": "the credentials have expired: renew them, and shipping goes on",
    "UnauthorizedSSOTokenError": "the credentials have expired: renew them, and shipping goes on",
    "CredentialRetrievalError": "the credentials cannot be had",
    "AuthenticationException": "the server refuses the login",
    "PasswordRequiredException": "the key for the login is locked: unlock it in an agent",
    "BadHostKeyException": "the server's host key is not in ~/.ssh/known_hosts: log in there once by hand",
}
_UNREACHED = frozenset(
    {
        "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError",
        "HTTPClientError", "ConnectionError", "ProxyConnectionError", "ClientConnectorError",
        "ServerDisconnectedError", "ClientOSError",
        "FSTimeoutError", "SSHException", "NoValidConnectionsError", "EOFError", "ClientPayloadError", "IncompleteRead",
        "ResponseParserError", "TimeoutError",
    }
)  # fmt: skip
_PASSING = frozenset(
    {
        errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.EHOSTUNREACH,
        errno.ENETUNREACH, errno.EBUSY, errno.EAGAIN, errno.ESTALE, errno.EREMOTEIO, errno.EINTR,
    }
)  # fmt: skip


def explain(exc: BaseException, url: str) -> RemoteError:
    """The error to raise instead. Nothing of a request is quoted: it may hold a signature."""
    code = find_code(exc)
    names = {cls.__name__ for error in _chain(exc) for cls in type(error).__mro__}
    if code in _NOT_NOW:
        return RemoteBusyError(f"{url}: the storage is busy ({code})")
    if code in _CREDENTIALS:
        return RemoteError(f"{url}: the storage {_CREDENTIALS[code]} ({code})")
    if code == "RequestTimeTooSkewed":
        return RemoteError(f"{url}: the clock of this machine is too far from the storage's ({code}): set it right")
    if code in {"NoSuchBucket", "InvalidBucketName"}:
        return RemoteError(f"{url}: there is no such bucket ({code}): make it, or correct ship.url")
    for name, sentence in _CLASSES.items():
        if name in names:
            return RemoteError(f"{url}: {sentence}")
    if code:
        return RemoteError(f"{url}: the storage refuses ({code})")
    passing = isinstance(exc, OSError) and exc.errno in _PASSING
    if names & _UNREACHED or passing:
        return RemoteBusyError(f"{url}: the storage does not answer ({type(exc).__name__})")
    if isinstance(exc, OSError) and exc.strerror:
        return RemoteError(f"{url}: {exc.strerror}")
    return RemoteError(f"{url}: {type(exc).__name__}: {str(exc)[:200]}")


def find_code(exc: BaseException) -> str:
    """The error code of S3's that an exception, or one behind it, carries; "" for none."""
    for error in _chain(exc):
        response = getattr(error, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            code = str(response["Error"].get("Code", ""))
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            known = code in _NOT_NOW or code in _CREDENTIALS
            return str(status) if status in {429, 500, 502, 503, 504} and not known else code
    return ""


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if exc is None:
            return
        yield exc
        exc = exc.__cause__ or exc.__context__
