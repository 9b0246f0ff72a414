"""What trainer and generators build alike, and the policy that episodes talk to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from forge.config import GrpoConfig
from forge.environments import Environment
from forge.errors import ConfigError
from forge.generation import Completion, Engine, Request, SamplingParams
from forge.kernels import LogProb, find_kernel
from forge.models import Decoder, DecoderConfig, load
from forge.tokenizer import Tokenizer

__all__ = ["BatchedPolicy", "build", "log_prob_kernel"]


def build(config: GrpoConfig, environment: Environment) -> tuple[Decoder, Tokenizer]:
    """The decoder and tokenizer of a run: from a directory, or a small one that is the same for the same seed."""
    rms_norm = find_kernel(config.kernels.rms_norm) if config.kernels.rms_norm else None
    if config.model.path:
        return load(config.model.path, rms_norm=rms_norm)
    if not environment.alphabet:
        raise ConfigError(f"task {config.task.name!r} has no alphabet; give a model directory", key="model.path")
    tokenizer = Tokenizer.characters(environment.alphabet)
    shape = DecoderConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.model.hidden_size,
        intermediate_size=config.model.intermediate_size,
        num_layers=config.model.num_layers,
        num_heads=config.model.num_heads,
        num_kv_heads=config.model.num_kv_heads,
        max_position_embeddings=config.model.max_position_embeddings,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_ids=(tokenizer.eos_id,),
    )
    return Decoder(shape, rms_norm=rms_norm).init(config.seed), tokenizer


def log_prob_kernel(config: GrpoConfig) -> LogProb | None:
    """The kernel for log-probabilities that the configuration names, if it names one."""
    return find_kernel(config.kernels.log_prob) if config.kernels.log_prob else None


class BatchedPolicy:
    """Gathers what concurrent episodes ask for at the same time, and completes it in one batch in `thread`.

    `seeds`, where given, are the seeds of the episodes' requests in the order in which they ask.
    """

    def __init__(
        self, engine: Engine, params: SamplingParams, thread: ThreadPoolExecutor, seeds: Sequence[int] = ()
    ) -> None:
        self.tokenizer = engine.tokenizer
        self._engine = engine
        self._params = params
        self._thread = thread
        self._seeds = iter(seeds)
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    async def generate(self, prompt_ids: Sequence[int]) -> Completion:
        """One completion of `prompt_ids`; raises `RequestError` if the engine cannot take them."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            # Runs after every episode that is ready now has asked: their callbacks are queued before this one.
            loop.call_soon(self._flush)
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting.append((self._request(prompt_ids), future))
        return await future

    def _request(self, prompt_ids: Sequence[int]) -> Request:
        seed = next(self._seeds, None)
        if seed is None:
            return Request(prompt_ids, self._params)
        return Request(
            prompt_ids, SamplingParams(self._params.temperature, max_tokens=self._params.max_tokens, seed=seed)
        )

    def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        task = asyncio.create_task(self._complete(batch))
        self._flushes.add(task)  # the loop itself keeps no strong reference
        task.add_done_callback(self._flushes.discard)

    async def _complete(self, batch: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        requests = [request for request, _ in batch]
        try:
            completions = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._engine.generate, requests
            )
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), completion in zip(batch, completions, strict=True):
            if not future.done():
                future.set_result(completion)
