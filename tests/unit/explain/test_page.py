"""The page of a run as a file: bounded, whole, without secrets. What it looks like is tested in a browser."""

# ruff: noqa: E501 - long lines of logs, markup and scripts are easier to read whole

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from page_kinds import KINDS, make

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, RunState
from slurmtrain.errors import SpecError, StoreError
from slurmtrain.ops.compact import compact
from slurmtrain.ops.explain import explain_run
from slurmtrain.ops.page import make_page, write_page
from slurmtrain.ops.page_ranks import find_ranks
from slurmtrain.ops.timeline import read_view

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "long"])
def test_a_page_is_bounded_and_closed(tmp_path: Path, kind: str) -> None:
    told = make(kind, tmp_path)
    page = make_page(explain_run(told.run.dir, None, told.at), (), told.at)
    assert 5_000 < len(page) < 2_000_000
    assert page.count("<script>") == page.count("</script>") == 1
    assert page.rstrip().endswith("</html>")
    assert "http" not in page.replace("http-equiv", "")


def test_secrets_of_command_line_environment_and_log_are_masked(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    plan = told.run.dir.plan
    plan.write_text(
        plan.read_text("utf-8")
        .replace(
            '"train.py"',
            f'"train.py", "--token", "hunter2hunter2", "https://ann:s3cretpass@git.example.org/x", "{TOKEN}"',
        )
        .replace('"NCCL_DEBUG": "WARN"', '"WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567"'),
        encoding="utf-8",
    )
    log = told.log.read_text("utf-8").replace("3:     loss.backward()", f"3: pushing with {TOKEN}")
    told.log.write_text(log + "0123456789abcdef0123456789abcdef01234567\n", encoding="utf-8")
    told.run.write(ev.StopRequested(at=told.at, who="user", by="ann", reason=f"Authorization: Bearer {TOKEN}"))
    page = make_page(explain_run(told.run.dir, None, told.at), (), told.at)
    for secret in ("hunter2hunter2", "s3cretpass", TOKEN, "0123456789abcdef0123456789abcdef01234567"):
        assert secret not in page, secret
    assert "pushing with" in page
    assert "WANDB_API_KEY" in page


def test_it_is_whole_or_not_there_and_follows_the_umask(tmp_path: Path) -> None:
    told = make("finished", tmp_path)
    found = explain_run(told.run.dir, None, told.at)
    before = os.umask(0o077)
    try:
        path = write_page(found, None, (), told.at)
    finally:
        os.umask(before)
    assert path == told.run.dir.path / "explain.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="cannot write"):
        write_page(found, tmp_path / "nowhere" / "page.html", (), told.at)
    assert [p for p in told.run.dir.path.iterdir() if p.name.startswith(".explain")] == []


def test_a_site_may_change_a_block(tmp_path: Path) -> None:
    told = make("finished", tmp_path / "store")
    own = tmp_path / "templates" / "explain"
    own.mkdir(parents=True)
    extend = '{% extends "bundled/explain/page.html.j2" %}{% block causes %}<p>Ask {{ name }} at the help desk</p>{% endblock %}'
    (own / "page.html.j2").write_text(extend, encoding="utf-8")
    found = explain_run(told.run.dir, None, told.at)
    assert "<p>Ask resnet50 at the help desk</p>" in make_page(found, (own.parent,), told.at)
    (own / "page.html.j2").write_text("{{ nothing }}", encoding="utf-8")
    with pytest.raises(SpecError, match=r"page\.html\.j2 uses a value that does not exist"):
        make_page(found, (own.parent,), told.at)


def test_the_command_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurmtrain.cli.explain import command

    told = make("finished", tmp_path)
    monkeypatch.setenv("SLURMTRAIN_STORE", str(tmp_path))
    done = CliRunner().invoke(
        command, ["resnet50", "--html", "--out", str(tmp_path / "p.html")], catch_exceptions=False
    )
    assert done.stdout.strip() == str(tmp_path / "p.html")
    assert "resnet50" in (tmp_path / "p.html").read_text("utf-8")
    assert CliRunner().invoke(command, ["resnet50", "--out", "x"]).exit_code == 2
    assert told.run.dir.path.is_dir()


def test_a_wait_is_counted_from_the_end_before_it(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    texts = [line.text for line in explain_run(told.run.dir, None, told.at).story if line.kind == "started"]
    assert texts == [
        "job 1 starts on n[1-2] after 1 h 30 min of waiting (free nodes)",
        "job 1 starts on n[3-4] after 30 min of waiting (jobs with a higher priority)",
    ]


def test_a_reason_does_not_repeat_the_diagnosis(tmp_path: Path) -> None:
    from slurmtrain.ops.story import without_sentence

    assert without_sentence("Rank 3 crashed; the same again", "Rank 3 crashed") == "the same again"
    assert without_sentence("Rank 3 crashed: no retry can cure this", "Rank 3 crashed") == "no retry can cure this"
    assert without_sentence("Rank 3 crashed", "Rank 3 crashed") == "Rank 3 crashed"
    assert without_sentence("because", "") == "because"


@pytest.mark.parametrize("joined", [False, True])
def test_the_picture_of_a_hang_tells_stuck_ranks_from_dead_ones(tmp_path: Path, *, joined: bool) -> None:
    """Also of a run whose small files ``prune`` has joined."""
    told = make("hung", tmp_path)
    if joined:
        told.decided(0, 0, Action.STOP, RunState.FAILED, cause="hang", reason="a person said so")
        told.run.write(told.events[-1])
        compact(read_view(told.run.dir))
        assert not told.run.dir.attempt(0).launch(0).exists()
    found = explain_run(told.run.dir, None, told.at)
    ranks = find_ranks(found, 1.0)
    assert ranks is not None
    marks = {rank: (mark, detail) for tile in ranks["tiles"] for rank, mark, detail in tile["ranks"]}
    assert marks[5] == ("first", "stopped by a signal, at step 41")
    assert marks[9] == ("stuck", "waited in the kernel (storage or a device), at step 41")
    assert marks[12] == ("gone", "had no process any more when the others hung")
    assert marks[0] == ("followed", "ended by signal 9, at step 42")
    assert [item["rank"] for item in ranks["told"]] == [5, 9, 12]
