"""Pace, patience, and what an error of the storage is told as."""

from __future__ import annotations

import threading
import time

import pytest

from slurmtrain.errors import RemoteBusyError, RemoteError
from slurmtrain.remote.faults import explain
from slurmtrain.remote.model import PART, part_bytes, regroup
from slurmtrain.remote.pace import Pace, StoppedError


def test_the_rate_holds_on_average() -> None:
    pace = Pace(2_000_000, 0)
    began = time.monotonic()
    for _ in range(20):
        pace.take(200_000)
    assert time.monotonic() - began >= 0.85  # two seconds' worth, one of them at once


def test_whoever_waits_can_be_asked_to_leave() -> None:
    pace = Pace(1, 0)
    pace.take(10_000)
    threading.Timer(0.1, pace.stop).start()
    with pytest.raises(StoppedError):
        pace.take(1)


def test_a_busy_storage_is_tried_again_until_patience_ends() -> None:
    answers = [RemoteBusyError("busy"), RemoteBusyError("busy")]
    told: list[str] = []

    def act() -> str:
        if answers:
            raise answers.pop()
        return "done"

    assert Pace(1e6, 60, told.append).patiently(act) == "done"
    assert told == ["busy", "busy"]
    answers.append(RemoteBusyError("busy"))
    with pytest.raises(RemoteBusyError):
        Pace(1e6, 0.5).patiently(act)


class ClientError(Exception):
    """As botocore's: what S3 answered."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("code", "status", "busy", "words"),
    [
        ("SlowDown", 503, True, "busy"),
        ("", 502, True, "busy"),
        ("InternalError", 500, True, "busy"),
        ("ExpiredToken", 400, False, "have expired"),
        ("SignatureDoesNotMatch", 403, False, "refuses the secret key"),
        ("AccessDenied", 403, False, "denies access"),
        ("RequestTimeTooSkewed", 403, False, "clock of this machine"),
        ("NoSuchBucket", 404, False, "no such bucket"),
        ("EntityTooLarge", 400, False, "EntityTooLarge"),
    ],
)
def test_errors_of_s3_in_words(code: str, status: int, busy: bool, words: str) -> None:
    try:
        raise PermissionError("translated") from ClientError(code, status)
    except PermissionError as exc:
        error = explain(exc, "s3://b/p")
    assert isinstance(error, RemoteBusyError) is busy
    assert words in str(error)
    assert "s3://b/p" in str(error)


def test_errors_of_the_network_pass_and_others_do_not() -> None:
    assert isinstance(explain(ConnectionRefusedError(111, "Connection refused"), "sftp://h/p"), RemoteBusyError)
    assert not isinstance(explain(PermissionError(13, "Permission denied"), "file:///p"), RemoteBusyError)
    assert isinstance(explain(RuntimeError("what"), "x://y"), RemoteError)


def test_parts_are_large_enough_for_s3_and_bytes_stay_in_order() -> None:
    assert part_bytes(1) == PART
    huge = 2 << 40
    assert huge / part_bytes(huge) < 9_100
    pieces = [b"ab", b"", b"cdefg", b"h"]
    assert list(regroup(iter(pieces), 3)) == [b"abc", b"def", b"gh"]
