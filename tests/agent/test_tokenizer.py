"""Reading a tokenizer folder: fingerprint, text that cannot spell special tokens, and clear refusals."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.tokenizer import TokenizerError, load_tokenizer


def test_text_never_becomes_an_added_token(tokenizer_folder) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    added = set(tokenizer.added.values())
    assert len(added) == 9
    piece = st.sampled_from(sorted(tokenizer.added)) | st.text(max_size=6)

    @given(st.lists(piece, max_size=8).map("".join))
    @settings(deadline=None)
    def check(text: str) -> None:
        ids = tokenizer.encode_text(text)
        assert not added & set(ids)
        assert tokenizer.decode(ids) == text

    check()
    marked = tokenizer.encode_marked("<tool_call>a<|im_end|>")
    assert marked[0] == tokenizer.added_id("<tool_call>")
    assert marked[-1] == tokenizer.added_id("<|im_end|>")
    assert tokenizer.decode(marked) == "<tool_call>a<|im_end|>"


def test_text_without_added_tokens_has_the_same_ids_both_ways(tokenizer_folder) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    for text in ("def total(items):\n    return 3\n", "  \n\n x\ty", "é🐍\u2028"):
        assert tokenizer.encode_text(text) == tokenizer.encode_marked(text)


def test_fingerprint_follows_ids_and_template_only(tokenizer_folder, tmp_path) -> None:
    original = load_tokenizer(tokenizer_folder).fingerprint
    copy = tmp_path / "copy"
    shutil.copytree(tokenizer_folder, copy)
    description = json.loads((copy / "tokenizer.json").read_text())
    (copy / "tokenizer.json").write_text(json.dumps(dict(reversed(description.items())), indent=3))
    assert load_tokenizer(copy).fingerprint == original
    description["added_tokens"][0]["content"] = "<|other|>"
    (copy / "tokenizer.json").write_text(json.dumps(description))
    assert load_tokenizer(copy).fingerprint != original
    shutil.copy(tokenizer_folder / "tokenizer.json", copy)
    (copy / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load_tokenizer(copy).fingerprint != original


def test_refusals_say_what_to_do(tokenizer_folder, tmp_path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(tokenizer_folder, copy)
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(TokenizerError, match="no chat template"):
        load_tokenizer(copy)
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="not a readable tokenizer"):
        load_tokenizer(copy)
    with pytest.raises(TokenizerError, match="<nope>"):
        load_tokenizer(tokenizer_folder).added_id("<nope>")


def test_refuses_a_tokenizer_whose_text_spells_added_tokens(tmp_path) -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"[UNK]": 0, "END": 1, "a": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens([AddedToken("END", special=True)])
    PreTrainedTokenizerFast(tokenizer_object=core, chat_template="x").save_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match="could forge turns"):
        load_tokenizer(tmp_path)
