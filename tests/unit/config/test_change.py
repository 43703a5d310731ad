"""Other values for some keys of an earlier run: checked as a new job is, the rest as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.config.resolve import Resolved, change
from slurmtrain.config.settings import Settings
from slurmtrain.core.spec import Environment, Resources, Retry, Spec, Stop
from slurmtrain.errors import SpecError, UsageError

OLD = Spec(
    ("python", "train.py", "a b", "#c"),
    name="old: one",
    resources=Resources(nodes=3, tasks_per_node=2, time_limit="10"),
    environment=Environment(setup=("module load x",), variables={"A": "1 # 2", "B": ""}),
    stop=Stop(warning_s=30),
    retry=Retry(causes={"cuda_oom": {"first": "hold", "hold": True}}, max_gpu_hours=1.5, deadline="3d"),
)


def changed(tmp_path: Path, *sets: str) -> Resolved:
    old = Spec(**{f: getattr(OLD, f) for f in OLD.__slots__} | {"workdir": str(tmp_path)})
    return change(old, "run old-1", sets, Settings(), {}, Path("/"))


def test_only_what_is_named_differs(tmp_path: Path) -> None:
    new = changed(tmp_path, "resources.nodes=5", "environment.variables.A=x", "retry.causes.cuda_oom.first=stop")
    assert new.spec.resources == Resources(nodes=5, tasks_per_node=2, time_limit="10")
    assert new.spec.environment == Environment(setup=("module load x",), variables={"A": "x", "B": ""})
    assert (new.spec.command, new.spec.name, new.spec.stop) == (OLD.command, OLD.name, OLD.stop)
    assert new.spec.workdir == str(tmp_path)
    assert new.spec.retry.causes == {"cuda_oom": {"first": "stop"}}
    assert new.spec.retry.deadline == "3d"
    assert new.sources["resources.nodes"] == "--set resources.nodes"
    assert new.sources["stop.warning_s"] == "run old-1"


def test_a_value_is_taken_back(tmp_path: Path) -> None:
    assert changed(tmp_path, "stop.warning_s=null").spec.stop == Stop()


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("resources.nods=3", SpecError, "did you mean 'nodes'"),
        ("time=10", SpecError, "resources.time_limit"),
        ("resources.nodes=many", SpecError, "whole number"),
        ("nodes", UsageError, "KEY=VALUE"),
        ("resources.sbatch_options=[--array=1-4]", SpecError, "array"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        changed(tmp_path, text)
    assert words in str(caught.value)
