"""Shipping to a real S3 server, whatever happens on the way: nothing torn, nothing twice, nothing lost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ceph import Ceph
from cluster import wait_until
from ship_env import Bucket, FaultyWay, ceph, ship_venv

__all__ = ["ceph", "ship_venv"]

pytestmark = pytest.mark.timeout(1200)

RUN_ID = "t-20261130-0000-aaaaaaaa"
SECRET = "hunter2Secret99"
KILLS = int(os.environ.get("SLURMTRAIN_TEST_KILLS", "10"))
LINE = b"step %06d loss 0.%04d connects with " + SECRET.encode() + b"\n"


class Shipping:
    """A run directory without a Slurm, and the command line that ships it."""

    def __init__(self, folder: Path, venv: Path, server: Ceph, bucket: Bucket) -> None:
        self.store = folder / "store"
        self.run = self.store / "runs" / RUN_ID
        self.bucket = bucket
        self._venv = venv
        self.env = {**os.environ, **server.environ, "HOME": str(folder)}
        for name in ("attempts/000/scene/n1", "checkpoints", "journal", "logs", "ship"):
            (self.run / name).mkdir(parents=True)
        self.log = self.run / "logs/train-1.log"
        self.log.write_bytes(b"".join(LINE % (n, n % 10000) for n in range(2000)))
        (self.run / "attempts/000/scene/n1/env.txt").write_text(f"DB_PASSWORD={SECRET}\n")
        self.plan()

    def plan(self, **ship: object) -> None:
        """What the job file says."""
        asked = {"url": f"s3://{self.bucket.name}/runs", "rate": "100MB/s", **ship}
        variables = {"environment": {"variables": {"DB_PASSWORD": SECRET}}, "command": ["x"], "ship": asked}
        plan = {"run_id": RUN_ID, "created_at": 1.0, "user": "me", "spec": variables}
        (self.run / "plan.json").write_text(json.dumps(plan))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        argv = [self._venv / "bin/slurmtrain", "ship", RUN_ID, "--store", self.store, *words]
        return subprocess.Popen(
            argv, env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.store
        )

    def ship(self, *words: str, code: int = 0, **env: str) -> str:
        """Both outputs of a call that ends with this code."""
        process = self.start(*words, **env)
        out, err = process.communicate(timeout=400)
        assert process.returncode == code, f"{process.returncode}: {out}{err}"
        assert "Traceback" not in err
        return out + err

    def end(self) -> None:
        """The run is over, and its job long gone."""
        decision = {"action": "complete", "state": "Completed", "cause": "no_failure", "reason": "finished"}
        event = {"kind": "decided", "at": 1.0, "who": "agent", "attempt": 0, "seq": 9, "writer": "a"}
        (self.run / "journal/a.jsonl").write_text(json.dumps({**event, "decision": decision}) + "\n")
        past = time.time() - 100
        for path in [self.log, self.run / "journal/a.jsonl"]:
            os.utime(path, (past, past))

    def checkpoint(self, step: int, mib: int) -> bytes:
        """A plain checkpoint of random bytes, settled."""
        path = self.run / f"checkpoints/step-{step}.npy"
        head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % (mib << 20)
        head = head.ljust(117) + b"\n"
        data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + random.Random(step).randbytes(mib << 20)
        path.write_bytes(data)
        os.utime(path, (time.time() - 100,) * 2)
        return data

    def expected(self) -> dict[str, bytes]:
        """What should be there of logs and scenes."""
        return {
            f"runs/{RUN_ID}/{path.relative_to(self.run)}": path.read_bytes().replace(SECRET.encode(), b"***")
            for path in (self.log, self.run / "attempts/000/scene/n1/env.txt")
        }

    def there(self) -> dict[str, bytes]:
        """What is there of them."""
        return {k: v for k, v in self.bucket.contents().items() if re.search(r"/logs/|/scene/", k)}


@pytest.fixture
def shipping(ship_venv: Path, ceph: Ceph, tmp_path: Path, request: pytest.FixtureRequest) -> Shipping:
    name = "b-" + re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-50:].strip("-")
    return Shipping(tmp_path, ship_venv, ceph, Bucket(ship_venv, ceph, name))


@pytest.fixture
def way(ceph: Ceph) -> Iterator[FaultyWay]:
    proxy = FaultyWay(ceph.port)
    yield proxy
    proxy.close()


def test_the_copy_is_the_masked_run_and_the_end_is_one_object_for_each_log(shipping: Shipping) -> None:
    shipping.log.write_bytes(b"".join(LINE % (n, n % 10000) for n in range(200_000)))  # 10 MB: in parts at first
    out = shipping.ship()
    assert f"{RUN_ID}: sent" in out
    parts = [k for k in shipping.there() if ".parts/" in k]
    assert len(parts) == 2
    joined = b"".join(shipping.there()[key] for key in sorted(parts))
    assert joined == shipping.expected()[f"runs/{RUN_ID}/logs/train-1.log"]
    shipping.end()
    assert "its copy complete" in shipping.ship()
    contents = shipping.bucket.contents()
    assert shipping.there() == shipping.expected()
    manifest = json.loads(contents[f"runs/{RUN_ID}/manifest.json"])
    assert manifest["complete"] is True
    assert {f"runs/{RUN_ID}/{k}": v["size"] for k, v in manifest["objects"].items()} == {
        k: len(v) for k, v in contents.items() if not k.endswith("manifest.json")
    }
    assert SECRET.encode() not in b"".join(contents.values())
    assert "sent 0 objects" in shipping.ship()


def test_a_shipper_that_is_killed_at_any_moment_is_made_good(shipping: Shipping) -> None:
    """The log grows, a checkpoint comes, and SIGKILL hits at random moments."""
    shipping.plan(what=["logs", "scenes", "checkpoints"], rate="30MB/s")
    chance = random.Random(int(os.environ.get("SLURMTRAIN_TEST_SEED", "7")))
    data = shipping.checkpoint(1, 24)
    began = time.monotonic()
    shipping.ship("--dry-run")
    whole_s = 4 * (time.monotonic() - began) + 3  # about what a whole call takes on this machine
    killed = 0
    for number in range(KILLS):
        with shipping.log.open("ab") as log:
            log.writelines(LINE % (n, n % 10000) for n in range(number * 3000, number * 3000 + 3000))
        process = shipping.start()
        try:
            process.wait(chance.uniform(0.1, whole_s))
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.communicate()
        (shipping.run / "ship/lease.json").unlink(missing_ok=True)  # what a minute or two would do
    assert killed >= KILLS // 2
    shipping.end()
    assert "complete" in shipping.ship()
    contents = shipping.bucket.contents()
    assert shipping.there() == shipping.expected()
    assert contents[f"runs/{RUN_ID}/checkpoints/step-1.npy"] == data
    assert not [key for key in contents if ".parts/" in key]
    assert shipping.bucket.uploads() == []


def test_a_large_upload_goes_on_where_it_was_cut(shipping: Shipping, way: FaultyWay) -> None:
    shipping.plan(what=["checkpoints"], rate="8MB/s")
    data = shipping.checkpoint(1, 64)
    process = shipping.start(AWS_ENDPOINT_URL=way.endpoint)
    wait_until(lambda: way.sent > 30 << 20, 200, "some parts are sent")
    process.kill()
    process.communicate()
    before = way.sent
    assert shipping.bucket.uploads()
    assert not [key for key in shipping.bucket.names() if "checkpoints" in key]
    (shipping.run / "ship/lease.json").unlink()
    shipping.plan(what=["checkpoints"], rate="100MB/s")
    shipping.ship(AWS_ENDPOINT_URL=way.endpoint)
    assert way.sent - before < 50 << 20  # what was there was not sent again
    assert shipping.bucket.contents()[f"runs/{RUN_ID}/checkpoints/step-1.npy"] == data
    assert f"runs/{RUN_ID}/checkpoints/step-1.npy.whole.json" in shipping.bucket.names()


def test_503_cut_connections_and_a_slow_link_cost_time_only(shipping: Shipping, way: FaultyWay) -> None:
    way.busy, way.cut_after, way.bytes_per_s = 0.3, 3 << 20, 20e6
    shipping.end()
    deadline = time.monotonic() + 300
    while "complete" not in shipping_output(shipping, way):
        assert time.monotonic() < deadline
    assert way.answered_busy
    assert shipping.there() == shipping.expected()


def shipping_output(shipping: Shipping, way: FaultyWay) -> str:
    process = shipping.start(AWS_ENDPOINT_URL=way.endpoint)
    out, err = process.communicate(timeout=400)
    assert process.returncode in (0, 4), err
    return out


def test_a_server_that_dies_and_comes_back_is_waited_for(shipping: Shipping, ceph: Ceph) -> None:
    shipping.plan(what=["logs", "scenes", "checkpoints"], rate="3MB/s")
    data = shipping.checkpoint(1, 24)
    shipping.end()
    process = shipping.start()
    wait_until(lambda: bool(shipping.bucket.uploads()), 120, "the checkpoint is being sent", 0.5)
    ceph.kill_gateway()
    time.sleep(3)
    assert process.poll() is None
    ceph.start_gateway()
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert "does not answer" in err
    assert shipping.there() == shipping.expected()
    assert shipping.bucket.contents()[f"runs/{RUN_ID}/checkpoints/step-1.npy"] == data


def test_what_a_person_has_to_mend_is_one_sentence(shipping: Shipping, ceph: Ceph) -> None:
    url = f"s3://{shipping.bucket.name}/runs"
    wrong = shipping.ship(code=1, AWS_SECRET_ACCESS_KEY="nope")
    assert wrong == f"slurmtrain: {RUN_ID}: {url}: the storage refuses the secret key: " + (
        "it does not belong to the access key (SignatureDoesNotMatch)\n"
    )
    assert "does not know the access key" in shipping.ship(code=1, AWS_ACCESS_KEY_ID="AKIANOBODY")
    assert "no credentials were found" in shipping.ship(code=1, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert "profile is not in" in shipping.ship(code=1, AWS_PROFILE="absent")
    missing = shipping.ship("--to", "s3://there-is-no-such-bucket/x", code=1)
    assert "there is no such bucket" in missing
    assert SECRET not in wrong + missing
    state = json.loads((shipping.run / "ship/state.json").read_text())
    assert "profile is not in" in state["problem"], "a copy to somewhere else is not the one that was asked for"
    assert shipping.bucket.names() == []


def test_the_rate_is_kept(shipping: Shipping, way: FaultyWay) -> None:
    shipping.plan(what=["checkpoints"], rate="4MB/s")
    shipping.checkpoint(1, 40)
    began = time.monotonic()
    shipping.ship(AWS_ENDPOINT_URL=way.endpoint)
    assert way.sent > 40 << 20
    assert time.monotonic() - began > (40 - 8 - 8) * (1 << 20) / 4e6  # the first part, and a burst of a second


def test_term_leaves_at_once_and_the_rest_comes_later(shipping: Shipping) -> None:
    shipping.plan(what=["logs", "checkpoints"], rate="2MB/s")
    shipping.checkpoint(1, 32)
    process = shipping.start()
    wait_until(lambda: bool(shipping.bucket.uploads()), 120, "the checkpoint is being sent", 0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [name for name in shipping.bucket.names() if name.endswith(".whole.json")]
    assert f"runs/{RUN_ID}/logs/train-1.log" in shipping.bucket.names()
