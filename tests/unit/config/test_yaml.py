"""YAML read without its surprises."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.config.nodes import Mapping, Scalar, Sequence
from slurmtrain.config.textfile import MAX_BYTES
from slurmtrain.config.yamlfile import load_yaml, parse_yaml
from slurmtrain.errors import NotFoundError, SlurmtrainError, SpecError


def plain(node: object) -> object:
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.entries.items()}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    assert isinstance(node, Scalar)
    return None if node.is_null else node.text


def test_values_stay_the_words_that_were_written() -> None:
    text = "a: 1:30:00\nb: no\nc: 1e-4\nd: 010\ne: 2026-01-02\nf: '~'\ng: ~\nh:\ni: 0x1F\nj: .inf\nk: 1_000\n"
    assert plain(parse_yaml(text, "x")) == {
        "a": "1:30:00", "b": "no", "c": "1e-4", "d": "010", "e": "2026-01-02", "f": "~", "g": None,
        "h": None, "i": "0x1F", "j": ".inf", "k": "1_000",
    }  # fmt: skip


def test_each_value_and_each_key_knows_its_line() -> None:
    tree = parse_yaml("a: 1\nb:\n  - x\n  - y\n", "job.yaml")
    assert isinstance(tree, Mapping)
    assert str(tree.entries["a"].place) == "job.yaml:1"
    assert str(tree.keys["b"]) == "job.yaml:2"
    items = tree.entries["b"]
    assert isinstance(items, Sequence)
    assert [str(item.place) for item in items.items] == ["job.yaml:3", "job.yaml:4"]


def test_aliases_work_within_bounds() -> None:
    assert plain(parse_yaml("a: &x [1, 2]\nb: *x\n", "x")) == {"a": ["1", "2"], "b": ["1", "2"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "x:3: the key 'a' is written twice (first at x:1)"),
        ("a:\n\tb: 1\n", "x:2: a tab is used for indentation"),
        ("a: b: c\n", "x:1: not valid YAML: a ': ' inside a value"),
        ("a: @x\n", "x:1: not valid YAML: a value may not begin with '@'"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: 'open\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [id]\n", "x:1: the tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a: !!str 5\n", "x:1: the tag"),
        ("a: !custom 5\n", "x:1: the tag '!custom'"),
        ("a: *nobody\n", "x:1: the alias '*nobody' names no anchor"),
        ("a: &a [*a]\n", "x:1: the alias '*a' contains itself"),
        ("a: 1\n---\nb: 2\n", "x:2: a second document begins here"),
        ("? [a, b]\n: 1\n", "x:1: a key must be a word, not a list"),
        ("b: &b {x: 1}\na:\n  <<: *b\n", "x:3: merge keys"),
        ("a: \x07\n", "x:1: the character U+0007 is not allowed"),
        ("[" * 100 + "]" * 100, "nested more than 32 levels"),
        ("a: {" * 20_000, "nested more than 32 levels"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_a_line(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "x")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_is_yaml_whatever_its_characters() -> None:
    value = {"a": "ünï 🚀", "b": ["\u2028", "𝄞x", 'q"\\'], "c": {}}
    for ascii_only in (True, False):
        assert plain(parse_yaml(json.dumps(value, ensure_ascii=ascii_only), "x")) == value


def test_half_a_character_stays_half_and_is_refused_where_it_is_used() -> None:
    assert plain(parse_yaml('a: "\\ud83d"', "x")) == {"a": "\ud83d"}


def test_an_alias_bomb_ends_early() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    began = time.monotonic()
    with pytest.raises(SpecError, match="more than 20000 values"):
        parse_yaml("\n".join(lines), "bomb.yaml")
    assert time.monotonic() - began < 2


def test_an_empty_file_is_an_empty_group(tmp_path: Path) -> None:
    for text in ("", "\n", "# nothing\n", "---\n"):
        assert plain(parse_yaml(text, "x")) in ({}, None)


class TestFiles:
    def test_the_ways_in_which_a_file_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="there is no file"):
            load_yaml(tmp_path / "none.yaml")
        with pytest.raises(NotFoundError, match="is a directory"):
            load_yaml(tmp_path)
        with pytest.raises(SlurmtrainError, match="cannot read"):
            load_yaml(Path("bad\0name"))

    def test_a_huge_file_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        path.write_bytes(b"#" * (MAX_BYTES + 2))
        with pytest.raises(SpecError, match="larger than 1 MiB"):
            load_yaml(path)

    def test_bytes_that_are_no_text_are_told_with_their_line(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.yaml"
        path.write_bytes(b"a: 1\nname: caf\xe9\n")
        with pytest.raises(SpecError, match=r"latin\.yaml:2: not valid UTF-8 \(byte 0xe9\)"):
            load_yaml(path)

    def test_a_batch_script_is_recognised(self, tmp_path: Path) -> None:
        path = tmp_path / "train.sh"
        path.write_text("#!/bin/bash\n#SBATCH -N 2\nsrun x\n")
        with pytest.raises(SpecError, match="looks like a script"):
            load_yaml(path)

    def test_a_byte_order_mark_does_no_harm(self, tmp_path: Path) -> None:
        path = tmp_path / "bom.yaml"
        path.write_bytes(b"\xef\xbb\xbfa: 1\n")
        assert plain(load_yaml(path)) == {"a": "1"}


@given(st.text(max_size=200))
def test_any_text_is_a_tree_or_one_sentence(text: str) -> None:
    with contextlib.suppress(SpecError):
        parse_yaml(text, "x")
