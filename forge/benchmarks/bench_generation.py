"""Sampling with log-probabilities: 64 prompts × 32 new tokens by a 2-layer, width-128 Llama, beside transformers.

All sides take turns in one process on one thread, and their CPU seconds are compared turn by turn, so that what else
runs on the machine falls on all of them. Usage: python benchmarks/bench_generation.py [TURNS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from report import record, spread

from forge.generation import Engine, Request, SamplingParams
from forge.models import Decoder, DecoderConfig, save
from forge.tokenizer import Tokenizer

BATCH, PROMPT, NEW = 64, 12, 32
LIMIT, FLOOR_LIMIT = 2.5, 0.6  # times transformers, and of the floor, by the design
TOKENIZER = Tokenizer.characters("0123456789=+-*() abcdefghijklmn")
CONFIG = DecoderConfig(
    vocab_size=len(TOKENIZER),
    hidden_size=128,
    intermediate_size=352,
    num_layers=2,
    num_heads=4,
    max_position_embeddings=512,
    pad_id=0,
    bos_id=1,
    eos_ids=(2,),
)
Side = Callable[[], object]


def forge_side(decoder: Decoder, prompts: torch.Tensor) -> Side:
    """The engine, every request with a seed of its own and log-probabilities on."""
    engine = Engine(decoder, TOKENIZER, slots=BATCH)
    requests = [
        Request(prompt, SamplingParams(max_tokens=NEW, ignore_eos=True, seed=seed))
        for seed, prompt in enumerate(prompts.tolist())
    ]
    return lambda: engine.generate(requests)


def transformers_side(decoder: Decoder, prompts: torch.Tensor) -> Side | None:
    """The same weights in transformers' own Llama, sampling and returning logits; None where it is not installed."""
    if find_spec("transformers") is None:
        return None
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        save(decoder, TOKENIZER, directory)
        model = AutoModelForCausalLM.from_pretrained(directory).eval()
    options = {"min_new_tokens": NEW, "max_new_tokens": NEW, "pad_token_id": 0, "top_k": 0, "top_p": 1.0}
    options |= {"do_sample": True, "temperature": 1.0, "output_logits": True, "return_dict_in_generate": True}

    def side() -> object:
        with torch.inference_mode():
            return model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)

    return side


def floor_side() -> Side:
    """Nothing but the matrix products of the decode steps."""
    fused = (128 * 3, 128), (128, 128), (352 * 2, 128), (128, 352)
    shapes = [*fused * CONFIG.num_layers, (CONFIG.vocab_size, 128)]
    weights = [torch.randn(inputs, outputs) for outputs, inputs in shapes]
    inputs = {size: torch.randn(BATCH, size) for size in (128, 352)}

    def side() -> None:
        for _ in range(NEW):
            for weight in weights:
                torch.mm(inputs[len(weight)], weight)

    return side


def measure(sides: dict[str, Side], turns: int) -> dict[str, list[float]]:
    """CPU seconds of each side in each turn, after two turns to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 2):
        for name, side in sides.items():
            start = time.process_time()
            side()
            if turn >= 2:
                seconds[name].append(time.process_time() - start)
    return seconds


def ratios(above: list[float], below: list[float]) -> list[float]:
    """Turn by turn."""
    return [one / other for one, other in zip(above, below, strict=True)]


def main(turns: int) -> None:
    """Measure, print and keep."""
    torch.set_num_threads(1)
    decoder = Decoder(CONFIG).requires_grad_(False)
    prompts = torch.randint(3, CONFIG.vocab_size, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))
    sides = {"forge": forge_side(decoder, prompts), "floor": floor_side()}
    peer = transformers_side(decoder, prompts)
    if peer is not None:
        sides["transformers"] = peer
    seconds = measure(sides, turns)
    rate = {name: f"{BATCH * NEW / statistics.median(values):.0f}" for name, values in seconds.items()}
    faster = spread(ratios(seconds["transformers"], seconds["forge"])) if peer is not None else "absent"
    of_floor = spread(ratios(seconds["floor"], seconds["forge"]))
    rows = [
        {
            "beside": "transformers generate",
            "forge tokens/s": rate["forge"],
            "peer tokens/s": rate.get("transformers", "absent"),
            "ratio": faster,
            "at least": str(LIMIT),
        },
        {
            "beside": "its matrix products alone",
            "forge tokens/s": rate["forge"],
            "peer tokens/s": rate["floor"],
            "ratio": of_floor,
            "at least": str(FLOOR_LIMIT),
        },
    ]
    title = f"Sampling {BATCH} × {NEW} tokens, 2-layer width-128 Llama, one thread, CPU time"
    record("generation", title, rows, seconds=seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
