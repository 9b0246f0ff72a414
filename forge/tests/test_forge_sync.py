"""Weight sync: the flat buffer, the checksum, backends by name, and what is noticed when weights do not arrive."""

import asyncio
import threading
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge import sync
from forge.config import GrpoConfig, ModelConfig, TaskConfig
from forge.errors import ConfigError, ParityError, ProviderError, SyncError
from forge.generation import Request, SamplingParams
from forge.generator import GeneratorActor, Loaded
from forge.sync import WeightChannel, checksum, flatten, host_store
from forge.trainer_actor import TrainerActor
from forge.workers import Workers

pytestmark = pytest.mark.unit

TINY = GrpoConfig(
    model=ModelConfig(hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2),
    task=TaskConfig(options={"digits": 2, "held_out_size": 8}),
)


def test_parameters_live_in_the_flat_buffer():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    before = module(torch.ones(3))
    flat = flatten(module)
    assert flat.numel() == sum(parameter.numel() for parameter in module.parameters())
    assert torch.equal(module(torch.ones(3)), before)
    flat.zero_()
    assert module[1].bias.item() == 0
    with torch.no_grad():
        module[0].weight[0, 0] = 5
    assert flat[0] == 5


def test_mixed_dtypes_are_refused():
    with pytest.raises(ConfigError, match="one dtype"):
        flatten(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).double()))


@given(st.integers(1, 9_000), st.data())
def test_a_checksum_sees_any_change_and_any_swap(size, data):
    flat = torch.arange(size, dtype=torch.float32)
    same, changed = flat.clone(), flat.clone()
    place = data.draw(st.integers(0, size - 1))
    changed[place] = torch.nextafter(changed[place], torch.tensor(1e9))
    assert checksum(same) == checksum(flat) != checksum(changed)
    other = data.draw(st.integers(0, size - 1))
    if other != place:
        same[place], same[other] = flat[other], flat[place]
        assert checksum(same) != checksum(flat)


def test_half_precision_has_a_checksum_too():
    flat = torch.ones(5000, dtype=torch.bfloat16)
    assert checksum(flat) != checksum(flat.half())


class Group:
    """A backend of threads in one process, enough of the contract for a broadcast."""

    interface = (1, 0)
    name = "threads"
    here: ClassVar[dict] = {}

    @classmethod
    def open(cls, *, rank, size, store, device, epoch=0, timeout, options=None):
        store.add("joined", 1)
        group = cls()
        group.rank, group.size, group.store = rank, size, store
        return group

    def broadcast(self, tensor, root, *, deadline=None):
        if self.rank == root:
            self.here["sent"] = tensor.clone()
            self.store.set("sent", b"1")
        else:
            self.store.wait(["sent"])
            tensor.copy_(self.here["sent"])
        return self

    def wait(self):
        return None

    def close(self):
        self.here["closed"] = self.here.get("closed", 0) + 1


def provide(monkeypatch, provider):
    monkeypatch.setattr(sync.providers, "load", lambda group, name, install: provider)


def test_a_broadcast_goes_from_the_trainer_to_every_generator(monkeypatch):
    provide(monkeypatch, Group)
    monkeypatch.setattr(Group, "here", {})
    ends = [WeightChannel(torch.nn.Linear(4, 4)) for _ in range(3)]
    store = host_store("127.0.0.1", 20)

    def end(rank):
        ends[rank].join("threads", rank=rank, size=3, host="127.0.0.1", port=store.port, timeout=20)
        assert (ends[rank].send() if rank == 0 else ends[rank].receive(None)) is None
        ends[rank].close()
        ends[rank].close()

    threads = [threading.Thread(target=end, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({checksum(one.flat) for one in ends}) == 1
    assert Group.here["closed"] == 3


def test_a_message_is_a_copy():
    sender, receiver = WeightChannel(torch.nn.Linear(2, 2)), WeightChannel(torch.nn.Linear(2, 2))
    flat = sender.send()
    sender.flat.zero_()
    receiver.receive(flat)
    assert torch.equal(receiver.flat, flat)
    assert flat.abs().sum() > 0
    with pytest.raises(ConfigError, match="join a group first"):
        receiver.receive(None)


def test_backends_that_break_the_contract_are_refused(monkeypatch):
    with pytest.raises(ProviderError, match=r"pip install 'pentad-forge\[stack\]'"):
        sync.find_backend("no-such-backend")
    provide(monkeypatch, type("Old", (Group,), {"interface": (0, 9)}))
    with pytest.raises(ProviderError, match=r"has interface \(0, 9\)"):
        sync.find_backend("old")
    provide(monkeypatch, type("Odd", (Group,), {"open": classmethod(lambda cls, rank: None)}))
    with pytest.raises(ProviderError, match="cannot be opened"):
        sync.find_backend("odd")


def alone(body, config=TINY):
    async def main():
        async with asyncio.timeout(60), Workers.open(config) as workers:
            return await body(workers)

    return asyncio.run(main())


def test_a_changed_weight_changes_the_next_greedy_output():
    trainer, generator = TrainerActor(TINY), GeneratorActor(TINY)
    request = Request([3, 4], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    before = generator.engine.generate([request])[0]
    with torch.no_grad():
        trainer.trainer.decoder.head[before.token_ids[0]] -= 100.0
    fingerprint, flat = trainer.publish()
    loaded = asyncio.run(generator.load(1, flat))
    after = generator.engine.generate([request])[0]
    assert loaded.checksum == fingerprint
    assert after.token_ids[0] != before.token_ids[0]
    assert after.versions == [1] * 8


def test_verification_raises_for_other_weights_and_for_other_numbers():
    async def body(workers):
        receipt = await workers.sync(1)
        await workers.verify(receipt)
        wrong = replace(receipt, loaded=[Loaded("0" * 64, receipt.loaded[0].probe)])
        with pytest.raises(SyncError, match="generator 0 holds 000000000000") as caught:
            await workers.verify(wrong)
        assert (caught.value.rank, caught.value.version) == (0, 1)
        moved = [replace(one, logprobs=tuple(x - 0.5 for x in one.logprobs)) for one in receipt.loaded[0].probe]
        with pytest.raises(ParityError, match="compare their kernels") as caught:
            await workers.verify(replace(receipt, loaded=[replace(receipt.loaded[0], probe=moved)]))
        assert caught.value.difference == pytest.approx(0.5, abs=1e-3)

    alone(body)


def test_an_evaluation_is_of_exactly_one_version():
    async def body(workers):
        workers.version = 7
        with pytest.raises(SyncError, match="holds version 0, not 7"):
            await workers.evaluate([], greedy=True)

    alone(body)


def test_several_generators_share_the_problems_in_order():
    from forge import environments

    problems = environments.find("sort", TINY.task.options).held_out()[:5]

    async def body(workers):
        groups = await workers.rollout(problems, 10)
        judged = await workers.evaluate(problems, greedy=True)
        return groups, judged

    groups, judged = alone(body, replace(TINY, generators=2, group_size=3))
    assert [[sample.group for sample in group] for group in groups] == [[number] * 3 for number in range(10, 15)]
    assert [sample.prompt for group in groups for sample in group[:1]] == [problem.prompt for problem in problems]
    assert [sample.prompt for sample in judged] == [problem.prompt for problem in problems]
