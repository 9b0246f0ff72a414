"""A task of your own in forty lines: say how often the first letter comes again. Run it as it is: it trains itself."""

import asyncio
import random
import sys
from dataclasses import dataclass

from forge.config import GrpoConfig, TaskConfig, WarmUpConfig
from forge.environments import Problem
from forge.recipes import grpo
from forge.samples import Episode


@dataclass(frozen=True)
class CountLetters:
    """ "abca=" is to be completed by "2"."""

    length: int = 5
    alphabet: str = "abc=0123456789"

    def problems(self, seed):
        draw, apart = random.Random(seed), {problem.prompt for problem in self.held_out()}
        while True:
            problem = self.problem(draw)
            if problem.prompt not in apart:
                yield problem

    def held_out(self):
        draw = random.Random(12_345)
        return [self.problem(draw) for _ in range(32)]

    def problem(self, draw):
        word = "".join(draw.choices("abc", k=self.length))
        return Problem(f"{word}=", str(word.count(word[0])))

    async def rollout(self, problem, policy):
        completion = await policy.generate(policy.tokenizer.encode(problem.prompt))
        text = policy.tokenizer.decode(completion.token_ids)
        parts = {"digit": 0.2 * (text.isdigit() and len(text) == 1), "right": 0.8 * (text == problem.answer)}
        return Episode([completion], parts, solved=text == problem.answer, text=text)


def main(steps: int) -> None:
    config = GrpoConfig(
        steps=steps,
        task=TaskConfig(name=f"{__name__}:CountLetters"),
        warm_up=WarmUpConfig(max_steps=100, until=0.3),
    )
    result = asyncio.run(grpo.run(config))
    print(
        f"solved before {result.before.sampled:.0%}, after {steps} steps {result.after.sampled:.0%}: {result.run_dir}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
