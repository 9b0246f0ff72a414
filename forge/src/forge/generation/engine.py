"""The engine: continuous batching of requests over a decoder that somebody else may be training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from forge.errors import RequestError
from forge.generation.cache import SlotCache
from forge.generation.request import Completion, Request
from forge.generation.rows import Row, RowTensors
from forge.generation.sampling import sample
from forge.kernels import LogProb, token_logprobs
from forge.models import Decoder
from forge.models.attention import positions_of
from forge.models.packing import pack
from forge.tokenizer import Tokenizer

__all__ = ["Engine"]


class Engine:
    """Completes requests in up to `slots` rows at once, refilling rows as they finish.

    `generate` does it all; a service instead calls `add` as requests come and `step` for as long as `busy`. Weights
    may change in place between two steps: call `update` with the new version. Rows in flight then go on with the keys
    and values they have, and each token says which version made it. The engine shares the decoder's parameters, and
    packs them (`forge.models.packing`).
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        *,
        slots: int = 64,
        max_seq_len: int | None = None,
        seed: int = 0,
        log_prob: LogProb | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}; the engine needs at least one")
        self.model = model
        self.tokenizer = tokenizer
        self.slots = slots
        self.max_seq_len = min(
            max_seq_len or model.config.max_position_embeddings, model.config.max_position_embeddings
        )
        self.version = 0
        self._log_prob = log_prob
        self._eos_ids = frozenset({tokenizer.eos_id, *model.config.eos_ids})
        self._generator = torch.Generator()
        self._seeds = torch.Generator().manual_seed(seed)
        self._cache = SlotCache(model, slots)
        self._cos, self._sin = model.rope(torch.arange(0))
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        self._tensors: RowTensors | None = None
        self._count = 0
        pack(model)

    @property
    def busy(self) -> bool:
        """Whether any request is waiting or in flight."""
        return bool(self._rows or self._waiting)

    def update(self, version: int) -> None:
        """Tell the engine that the decoder's weights are now those of `version`."""
        pack(self.model)
        self.version = version

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Complete `requests`, in their order; raises `RequestError` before anything is computed."""
        if self.busy:
            raise RequestError("the engine has requests in flight; use add and step, or an engine of its own")
        for request in requests:
            self._check(request)
        numbers = [self.add(request) for request in requests]
        done: dict[int, Completion] = {}
        while self.busy:
            done.update(self.step())
        return [done[number] for number in numbers]

    def add(self, request: Request) -> int:
        """Queue a request; its number comes back from `step` with its completion."""
        self._check(request)
        prompt, params = tuple(request.prompt_ids), request.params
        seed = params.seed
        if seed is None:
            seed = int(torch.randint(2**62, (), generator=self._seeds))
        limit = min(params.max_tokens, self.max_seq_len - len(prompt))
        draws = torch.rand(limit, generator=self._generator.manual_seed(seed)).tolist()
        stops = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else self._eos_ids)
        self._waiting.append(Row(self._count, prompt, params, draws, stops))
        self._count += 1
        return self._count - 1

    def _check(self, request: Request) -> None:
        length = len(request.prompt_ids)
        if not 1 <= length < self.max_seq_len:
            raise RequestError(
                f"the prompt has {length} tokens; this engine takes 1 to {self.max_seq_len - 1} "
                f"(max_seq_len {self.max_seq_len} less one to generate)"
            )
        low, high = min(request.prompt_ids), max(request.prompt_ids)
        if low < 0 or high >= self.model.config.vocab_size:
            raise RequestError(
                f"the prompt has token ids from {low} to {high}; the model's vocabulary has "
                f"{self.model.config.vocab_size}: was it encoded by another model's tokenizer?"
            )

    @torch.no_grad()
    def step(self) -> list[tuple[int, Completion]]:
        """One decode step: every row in flight gets a token. Returns what it finished, as (number, completion)."""
        if self._waiting and self._refill_due():
            self._refill()
        if not self._rows:
            return []
        rows = self._tensors = self._tensors or RowTensors(self._rows, self._device, self.model.config.vocab_size)
        tokens, logprobs = self._sample(rows, self._decode(rows))
        rows.advance(tokens)
        finished = [
            slot
            for slot, (row, token, logprob) in enumerate(
                zip(self._rows, tokens.tolist(), logprobs.tolist(), strict=True)
            )
            if row.append(token, logprob, self.version) or (row.params.stop and self._has_stop_string(row))
        ]
        return [self._finish(slot) for slot in reversed(finished)]

    def _decode(self, rows: RowTensors) -> Tensor:
        """Logits f32[N, V] after the rows' latest tokens."""
        cos, sin = self._rope(rows.positions.unsqueeze(1), rows.longest + 1)
        hidden = self.model.decode(rows.tokens.unsqueeze(1), cos, sin, self._cache.step())
        return self.model.logits(hidden.squeeze(1))

    def _sample(self, rows: RowTensors, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The next token int64[N] and its log-probability f32[N]."""
        tokens = logits.argmax(-1) if rows.any_greedy else None
        if not rows.all_greedy:
            draws = torch.tensor([row.draws[len(row.token_ids)] for row in self._rows], device=self._device)
            scaled = logits if isinstance(rows.temperature, float) else logits / rows.temperature.unsqueeze(-1)
            drawn = sample(scaled.softmax(-1), draws, rows.cuts)
            tokens = drawn if tokens is None else torch.where(rows.greedy, tokens, drawn)
        assert tokens is not None
        return tokens, token_logprobs(logits, tokens, rows.temperature, kernel=self._log_prob)

    def _has_stop_string(self, row: Row) -> bool:
        """Whether the text's end holds a stop string: no token but a special one is less than a byte of it."""
        tail = self.tokenizer.decode(row.token_ids[-max(len(stop.encode()) for stop in row.params.stop) - 4 :])
        return any(stop in tail for stop in row.params.stop)

    def _finish(self, slot: int) -> tuple[int, Completion]:
        """Take a row out; the last row moves into its slot, so that the rows in flight stay the first slots."""
        row = self._rows[slot]
        self._rows[slot] = self._rows[-1]
        self._rows.pop()
        self._cache.close(slot)
        self._tensors = None
        ended = row.token_ids[-1] in row.stop_ids or (row.params.stop and self._has_stop_string(row))
        return row.number, row.completion("stop" if ended else "length")

    def _refill_due(self) -> bool:
        """Refill in batches: prefilling one prompt costs almost what prefilling several does."""
        free = self.slots - len(self._rows)
        return free >= min(len(self._waiting), max(1, self.slots // 8))

    def _refill(self) -> None:
        """Start waiting rows in the free slots; prompts that are equal are prefilled once."""
        started = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.slots - len(self._rows)))]
        first = len(self._rows)
        slot_of = {prompt: first + index for index, prompt in enumerate(dict.fromkeys(row.prompt for row in started))}
        distinct = {row.prompt: row for row in reversed(started)}
        repeated = [row for row in started if distinct[row.prompt] is not row]
        self._rows += [*(distinct[prompt] for prompt in slot_of), *repeated]
        self._tensors = None
        self._cache.open([len(row.prompt) - 1 for row in self._rows[first:]])
        self._prefill([prompt[:-1] for prompt in slot_of], first)
        if repeated:
            self._cache.repeat([slot_of[row.prompt] for row in repeated], first + len(slot_of))

    def _prefill(self, prompts: Sequence[tuple[int, ...]], slot: int) -> None:
        """Fill the slots from `slot` on with the keys and values of all but a prompt's last token (`step` feeds it)."""
        shortest, longest = min(map(len, prompts)), max(map(len, prompts))
        if longest == 0:
            return
        padded = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts], device=self._device)
        mask = None
        if shortest < longest:
            lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
            mask = torch.arange(longest, 0, -1, device=self._device) <= lengths.unsqueeze(-1)
        cos, sin = self._rope(positions_of(padded, mask), longest)
        self.model.decode(padded, cos, sin, self._cache.prefill(padded, mask, slot))

    def _rope(self, positions: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Rotary tables of `positions`, all below `limit`, looked up in tables that double as they must."""
        if len(self._cos) < limit:
            length = min(max(2 * limit, 64), self.max_seq_len)
            self._cos, self._sin = self.model.rope(torch.arange(length, device=self._device))
        return self._cos[positions], self._sin[positions]

    @property
    def _device(self) -> torch.device:
        return self.model.head.device
