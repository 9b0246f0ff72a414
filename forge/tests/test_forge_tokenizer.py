"""The tokenizer: characters, special tokens and chat templates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.errors import TokenizerError
from forge.tokenizer import Tokenizer

pytestmark = pytest.mark.unit

ALPHABET = "0123456789=+ \nab"
TOKENIZER = Tokenizer.characters(ALPHABET)


@given(st.text(ALPHABET))
def test_characters_come_back_one_token_each(text: str) -> None:
    token_ids = TOKENIZER.encode(text)
    assert len(token_ids) == len(text)
    assert all(token_id >= 3 for token_id in token_ids)
    assert TOKENIZER.decode(token_ids) == text


def test_special_tokens_have_the_first_ids_and_are_recognised_in_text() -> None:
    assert (TOKENIZER.pad_id, TOKENIZER.bos_id, TOKENIZER.eos_id) == (0, 1, 2)
    assert len(TOKENIZER) == len(ALPHABET) + 3
    token_ids = TOKENIZER.encode("<bos>1<eos><pad>")
    assert token_ids == [1, 4, 2, 0]
    assert TOKENIZER.decode(token_ids) == "1"
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == "<bos>1<eos><pad>"


def test_what_the_alphabet_lacks_is_an_error_that_names_the_text() -> None:
    with pytest.raises(TokenizerError, match="'12z'"):
        TOKENIZER.encode("12z")


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_an_alphabet_is_checked(alphabet: str) -> None:
    with pytest.raises(TokenizerError, match="alphabet"):
        Tokenizer.characters(alphabet)


def test_padding_falls_back_to_the_end_token() -> None:
    assert Tokenizer(TOKENIZER.backend, eos_id=2).pad_id == 2


def test_a_chat_template_sees_messages_specials_and_the_generation_prompt() -> None:
    tokenizer = Tokenizer.characters("abu:")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}\n"
        "    {%- if message.role == 'system' %}{% continue %}{% endif %}\n"
        "{{ message.role[:1] }}:{{ message.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    messages = [{"role": "system", "content": "b"}, {"role": "user", "content": "ab"}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == "<bos>u:ab<eos>a:"
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=False) == "<bos>u:ab<eos>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "template"),
    ],
)
def test_a_template_that_is_missing_broken_or_hostile_is_an_error(template: str | None, message: str) -> None:
    tokenizer = Tokenizer.characters("ab")
    tokenizer.chat_template = template
    with pytest.raises(TokenizerError, match=message):
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)
