"""docs/states.md shows the table that the program uses, and commands.md the keys that it prints."""

from __future__ import annotations

import re
from pathlib import Path

from slurmtrain.core.decision import RunState
from slurmtrain.core.vocabulary import TABLE, VOCABULARIES
from slurmtrain.ops.status import RunStatus

DOCS = Path(__file__).resolve().parents[3] / "docs"


def _rows(page: str) -> list[list[str]]:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_the_table_of_vocabularies_is_the_programs_own() -> None:
    shown = [row for row in _rows("states.md") if len(row) == 8]
    assert shown[0] == ["state", "stage", *VOCABULARIES]
    wanted = [
        [state.value, stage.value if stage and stage.value else "", *(words.word(name) for name in VOCABULARIES)]
        for (state, stage), words in TABLE.items()
    ]
    assert shown[1:] == wanted


def test_every_state_is_explained() -> None:
    assert {row[0] for row in _rows("states.md") if len(row) == 3} == {state.value for state in RunState} | {"state"}


def test_the_keys_of_status_are_documented_in_their_order() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    table = text[text.index("these keys in this order") : text.index("## explain")]
    keys = [
        key for row in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE) for key in re.findall(r"\w+", row)
    ]
    assert keys == list(RunStatus("run", "name", RunState.PENDING).to_dict())
