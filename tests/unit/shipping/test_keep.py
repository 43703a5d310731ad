"""Which remote copies may go, and that nothing else does."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

from make_run import end_run, make_run

from slurmtrain.ops.shipping.keep import DAY_S, expire_remote
from slurmtrain.ops.shipping.shipper import Order, Shipper, make_pace
from slurmtrain.store.rundir import RunDir


def order_of(run: RunDir) -> Order:
    plan = run.read_plan()
    return Order(run, plan, plan.spec.ship, {})


def ship(run: RunDir) -> None:
    order = order_of(run)
    Shipper(order, make_pace(order.ship, 5, lambda _text: None), lambda _text: None).ship()


def test_only_complete_copies_of_this_store_go_and_checkpoints_stay(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    made = [
        make_run(tmp_path / store, f"file://{remote}", f"{name}-20260101-0000-aaaaaaaa", keep_days=7)
        for store, name in (("store", "done"), ("store", "saved"), ("store", "running"), ("other", "foreign"))
    ]
    for run in made:
        if not run.run_id.startswith("running"):
            end_run(run)
        ship(run)
    (remote / "somebodys-folder").mkdir()
    (remote / "somebodys-folder" / "thesis.tex").write_text("x")
    saved = remote / made[1].run_id / "checkpoints"
    saved.mkdir()
    (saved / "step-1").write_text("weights")
    order = order_of(made[0])
    pace = make_pace(order.ship, 5, lambda _text: None)
    later = time.time() + 30 * DAY_S
    planned = list(expire_remote(order, pace, dry_run=True, now=later))
    assert (remote / made[0].run_id / "spec.yaml").exists()
    assert list(expire_remote(order, pace, now=time.time() + 6.9 * DAY_S)) == []
    gone = list(expire_remote(order, pace, now=later))
    assert sorted(one.run_id for one in gone) == sorted(one.run_id for one in planned)
    assert sorted(one.run_id for one in gone) == sorted(run.run_id for run in made[:2])
    assert not [p for p in (remote / made[0].run_id).rglob("*") if p.is_file()]
    left = sorted(str(p.relative_to(saved.parent)) for p in saved.parent.rglob("*") if p.is_file())
    assert left == ["checkpoints/step-1", "manifest.json"]
    assert json.loads((saved.parent / "manifest.json").read_text())["objects"] == {"checkpoints/step-1": {"size": 7}}
    for run in made[2:]:
        assert (remote / run.run_id / "spec.yaml").exists()
    assert (remote / "somebodys-folder" / "thesis.tex").exists()
    assert list(expire_remote(order, pace, now=later)) == []


def test_all_but_the_newest_few_go_and_without_a_limit_none(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    for number in range(3):
        run = make_run(tmp_path / "store", f"file://{remote}", f"r{number}-20260101-0000-aaaaaaaa", keep_runs=2)
        end_run(run)
        ship(run)
    order = order_of(run)
    pace = make_pace(order.ship, 5, lambda _text: None)
    later = time.time() + 30 * DAY_S
    unlimited = dataclasses.replace(order, ship=dataclasses.replace(order.ship, keep_runs=None))
    assert list(expire_remote(unlimited, pace, now=later)) == []
    assert [gone.run_id[:2] for gone in expire_remote(order, pace, now=later)] == ["r0"]
