"""The helper's callbacks and ``atomic_save`` with the real packages; no job is needed for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from own_starts import place

pytestmark = [pytest.mark.timeout(600), pytest.mark.native_only]


class Tried:
    """Runs ``programs/callbacks.py`` as a user in a folder of its own."""

    def __init__(self, cluster: Cluster, folder: Path, python: Path) -> None:
        self._cluster, self._folder, self._python = cluster, folder, python

    def __call__(self, kind: str, /, *, torchrun: bool = False, **options: Any) -> Any:
        starter = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"] if torchrun else []
        for name in ("stop", "done"):
            (self._folder / name).unlink(missing_ok=True)
        env = {
            "SLURMTRAIN_STOP_FILE": str(self._folder / "stop"), "SLURMTRAIN_DONE_FILE": str(self._folder / "done"),
            "SLURMTRAIN_CHECKPOINT_DIR": str(self._folder / "checkpoints"), "KERAS_BACKEND": "torch",
        }  # fmt: skip
        program = place(self._folder, "callbacks.py")
        done = self._cluster.as_user(
            self._python, *starter, program, kind, json.dumps(options), cwd=self._folder, env=env, timeout_s=240
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def tried(cluster: Cluster, store: Path, framework_python: Path) -> Tried:
    return Tried(cluster, store, framework_python)


def test_lightning_leaves_with_whole_steps(tried: Tried) -> None:
    """Three batches make a step: the fourth begins one that no checkpoint could hold."""
    left = tried("lightning", stop=4, trainer={"accumulate_grad_batches": 3})
    assert left["batches"] == [0, 0, 0, 1, 1, 1]
    assert left["steps"] == [0, 0, 1, 1, 1, 2]
    assert "step-2.ckpt" in left["saved"]
    assert not left["done"]
    again = tried("lightning", resume="checkpoints/step-2.ckpt", trainer={"accumulate_grad_batches": 3})
    assert again["batches"] == [2, 2, 2, 3, *[4] * 3, *[5] * 3, *[6] * 3, 7], "to the end of both epochs"
    assert again["done"]


@pytest.mark.parametrize("least", [{"min_epochs": 2}, {"min_steps": 15}])
def test_lightning_leaves_though_more_was_demanded_of_it(tried: Tried, least: dict[str, int]) -> None:
    left = tried("lightning", stop=4, trainer=least)
    assert (left["batches"], left["evaluated"], left["done"]) == ([0, 1, 2, 3], 0, False)


def test_lightning_resumes_from_what_knows_that_the_epoch_is_not_over(tried: Tried) -> None:
    """Lightning ends the epoch when it leaves, and its ModelCheckpoint saves that."""
    left = tried("lightning", stop=4)
    assert left["saved"] == ["epoch=0-step=4.ckpt", "step-4.ckpt"]
    assert left["newest"] == "step-4.ckpt", "of two with one step the newer counts"
    again = tried("lightning", resume="checkpoints/step-4.ckpt")
    assert again["batches"] == list(range(4, 20))


def test_lightning_counts_the_steps_of_all_optimizers(tried: Tried) -> None:
    left = tried("lightning", stop=4, optimizers=2)
    assert (left["steps"], left["done"]) == ([2, 4, 6, 8], False)
    assert "step-8.ckpt" in left["saved"]
    again = tried("lightning", resume="checkpoints/step-8.ckpt", optimizers=2)
    assert again["batches"] == list(range(8, 40, 2))


def test_lightning_is_not_done_because_another_rank_was_asked(tried: Tried) -> None:
    left = tried("lightning", torchrun=True, stop=3, ranks=2, only_rank=1)
    assert (left["batches"], left["done"]) == ([0, 1, 2], False)
    assert "step-3.ckpt" in left["saved"]


def test_validation_is_no_silence(tried: Tried) -> None:
    whole = tried("lightning")
    assert whole["evaluated"] == 20
    assert whole["steps"] == [*range(1, 11), *[10] * 10, *range(11, 21), *[20] * 10]
    assert whole["done"]
    trained = tried("trainer", trainer={"eval_strategy": "epoch", "save_strategy": "no"})
    assert trained["steps"] == whole["steps"]
    assert trained["done"]


def test_the_trainer_leaves_with_whole_steps(tried: Tried) -> None:
    options = {"gradient_accumulation_steps": 3, "save_strategy": "no"}
    left = tried("trainer", stop=4, trainer=options)
    assert left["batches"] == [0, 0, 0, 1, 1, 1]
    assert left["steps"] == [0, 0, 1, 1, 1, 2]
    assert (left["saved"], left["done"]) == (["checkpoint-2"], False)
    again = tried("trainer", resume="checkpoints/checkpoint-2", trainer=options)
    assert again["batches"] == [2, 2, 2, 3, *[4] * 3, *[5] * 3, *[6] * 3, 7]
    assert again["done"]


def test_accelerate_leaves_with_whole_steps(tried: Tried) -> None:
    left = tried("accelerate", stop=4, accumulate=3)
    assert left["batches"] == [0, 0, 0, 1, 1, 1]
    assert left["saved"] == ["step-2"]


def test_every_format_is_written_under_its_own_name(tried: Tried) -> None:
    found = tried("formats")
    names = ["a-5.npy", "b-5.npz", "c-5.pt", "d-5.safetensors", "e-5.keras", "f-5.weights.h5", "g-5"]
    assert found == {"same": [True] * 7, "names": names}


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo"])
def test_all_ranks_learn_what_one_was_told(tried: Tried, backend: str | None) -> None:
    told = tried("group", torchrun=True, backend=backend)
    assert told == [[False, True, False], [False, True, True]]
