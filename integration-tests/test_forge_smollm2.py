"""The real SmolLM2-135M-Instruct, read from its GGUF file by forge and by transformers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from forge.export import decode_step
from forge.generation import Engine, Request, SamplingParams
from forge.models import Decoder, find_gguf, load, load_gguf, save
from forge.tokenizer import Tokenizer

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
# transformers ignores the file's pre-tokenizer, which splits digits of every script; forge and llama.cpp do not.
TEXTS = [
    "Hello world",
    "  two spaces\n\n\ttabs ",
    "12345 and 3.14159, x²",
    "naïve café 日本語 🙂👩‍👩‍👧",
    "def f(x):\n    return x**2  # don't",
    "I'LL we've they're 'sup",
    "a\r\nb\u00a0c\u200bd\x00\x7f",
    "<|im_start|>user\nhi<|im_end|>\n<empty_output><jupyter_code>x",
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread of torch: beside other work, two that wait for each other take many times longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", name="ours")
def _ours() -> tuple[Decoder, Tokenizer]:
    return load_gguf(find_gguf())


@pytest.fixture(scope="module", name="theirs")
def _theirs() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    path = find_gguf()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module", name="prompt")
def _prompt(ours: tuple[Decoder, Tokenizer]) -> list[int]:
    _, tokenizer = ours
    return tokenizer.encode(tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True))


def greedy(decoder: Decoder, tokenizer: Tokenizer, prompt: list[int], length: int = 24) -> list[int]:
    [completion] = Engine(decoder, tokenizer).generate(
        [Request(prompt, SamplingParams(temperature=0.0, max_tokens=length))]
    )
    return completion.token_ids


def test_text_is_tokenized_alike(ours, theirs) -> None:
    tokenizer, peer = ours[1], theirs[1]
    for text in TEXTS:
        assert tokenizer.encode(text) == peer(text, add_special_tokens=False).input_ids, text
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True) == peer.apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True
    )


def test_logits_and_greedy_tokens_are_equal(ours, theirs, prompt: list[int]) -> None:
    (decoder, tokenizer), (peer, _) = ours, theirs
    ids = torch.tensor([prompt])
    with torch.no_grad():
        torch.testing.assert_close(decoder(ids), peer(ids).logits, atol=1e-3, rtol=1e-4)
    tokens = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert greedy(decoder, tokenizer, prompt) == tokens[0, len(prompt) :].tolist()


def test_it_knows_the_capital_of_france(ours, prompt: list[int]) -> None:
    assert "Paris" in ours[1].decode(greedy(*ours, prompt))


def test_the_decode_step_says_the_same(ours, prompt: list[int]) -> None:
    decoder, tokenizer = ours
    expected = greedy(decoder, tokenizer, prompt)
    step, _ = decode_step(decoder, 64)
    tokens = list(prompt)
    with torch.no_grad():
        for position in range(len(prompt) + len(expected) - 1):
            logits = step(torch.tensor([[tokens[position]]]), torch.tensor(position))
            if position >= len(prompt) - 1:
                tokens.append(int(logits.argmax()))
    assert tokens[len(prompt) :] == expected


def test_a_saved_directory_is_the_same_model(ours, theirs, prompt: list[int], tmp_path: Path) -> None:
    save(*ours, tmp_path)
    decoder, tokenizer = load(tmp_path)
    assert decoder.config == ours[0].config
    assert greedy(decoder, tokenizer, prompt, 8) == greedy(*ours, prompt, 8)
    peer = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert peer(text, add_special_tokens=False).input_ids == tokenizer.encode(text), text
