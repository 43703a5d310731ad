"""Ceilings of the ladder in a job file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.config.resolve import Request, resolve
from slurmtrain.config.settings import Settings, load_settings
from slurmtrain.config.specfile import dump_spec
from slurmtrain.core.spec import Retry
from slurmtrain.errors import SpecError


def read(tmp_path: Path, retry: str, *sets: str) -> Retry:
    path = tmp_path / "job.yaml"
    path.write_text(f"command: [x]\nretry:\n{retry}")
    return resolve(Request(path, sets=sets), Settings(), {}, tmp_path).spec.retry


def test_causes_hours_and_a_deadline(tmp_path: Path) -> None:
    text = (
        "  max_gpu_hours: 1.5\n  deadline: 72h\n  causes:\n    nccl_timeout: {first: requeue, delay_s: 1m, hold: no}\n"
    )
    retry = read(tmp_path, text)
    assert (retry.max_gpu_hours, retry.deadline) == (1.5, "72h")
    assert retry.causes == {"nccl_timeout": {"first": "requeue", "delay_s": 60, "hold": False}}
    assert read(tmp_path, "  in_place: 1\n", "retry.causes.cuda_oom.requeues=4").causes == {"cuda_oom": {"requeues": 4}}
    assert read(tmp_path, text, "retry.causes={gpu_lost: {requeues: 4}}").causes == {"gpu_lost": {"requeues": 4}}


def test_a_date_is_kept_with_its_zone(tmp_path: Path) -> None:
    kept = read(tmp_path, "  deadline: 2026-12-24T08:00\n").deadline
    assert kept is not None
    assert kept.startswith("2026-12-24T08:00:00")
    assert kept[19] in "+-"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  max_gpu_hours: -1\n", "hours"),
        ("  max_gpu_hours: lots\n", "hours"),
        ("  deadline: soon\n", "72h"),
        ("  deadline: 2026-13-45\n", "no date"),
        ("  causes: 3\n", "causes by name"),
        ("  causes: {nccl_timeot: {requeues: 1}}\n", "did you mean 'nccl_timeout'?"),
        ("  causes: {nccl_timeout: {requeue: 1}}\n", "did you mean 'requeues'?"),
        ("  causes: {nccl_timeout: {first: never}}\n", "nccl_timeout.first"),
        ("  causes: {nccl_timeout: 3}\n", "nccl_timeout: expected keys"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)


def test_the_resolved_spec_is_a_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [x]\nretry: {max_gpu_hours: 2, causes: {cuda_oom: {first: hold, hold: yes}}}\n")
    first = resolve(Request(path), Settings(), {}, tmp_path)
    again = tmp_path / "spec.yaml"
    again.write_text(dump_spec(first.spec, first.sources, "r"))
    assert resolve(Request(again), Settings(), {}, tmp_path).spec == first.spec


def test_a_site_locks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "etc" / "slurmtrain" / "config.toml"
    site.parent.mkdir(parents=True)
    site.write_text(
        'lock = ["retry.max_gpu_hours", "retry.causes"]\n[defaults.retry]\nmax_gpu_hours = 64\n'
        "[defaults.retry.causes.gpu_lost]\nrequeues = 1\n"
    )
    monkeypatch.setattr("slurmtrain.config.settings.sys.prefix", str(tmp_path))
    settings = load_settings({"HOME": str(tmp_path)}, tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text("command: [x]\n")
    spec = resolve(Request(path), settings, {}, tmp_path).spec
    assert (spec.retry.max_gpu_hours, spec.retry.causes) == (64.0, {"gpu_lost": {"requeues": 1}})
    for text in ("max_gpu_hours: 65", "causes: {gpu_lost: {requeues: 9}}"):
        path.write_text(f"command: [x]\nretry: {{{text}}}\n")
        with pytest.raises(SpecError, match="locked by the site"):
            resolve(Request(path), settings, {}, tmp_path)
