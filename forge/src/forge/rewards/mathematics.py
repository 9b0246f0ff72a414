r"""A reward for a mathematical answer, written as `#### 42`, `\boxed{42}`, `$1,234.00` or just at the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["MathReward", "final_answer"]

_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.(?!\d))?(?:\s*/\s*\d+)?%?")
_MARK = re.compile(r"####[ \t]*([^\n]*)")
_BOX = re.compile(r"\\boxed\s*\{")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_DRESSING = re.compile(r"\\text\s*\{([^{}]*)\}|\\(?:left|right|,|!|;|\$|%)|[\s$%]")


@dataclass(frozen=True, slots=True)
class MathReward:
    """`right` for an answer equal to the gold one, else 0; numbers are compared as exact fractions."""

    right: float = 1.0

    def __call__(self, prompt: str, completion: str, answer: str | None) -> float | None:
        """Score one completion. `answer` may hold `#### 42` itself; None is not scorable; "" equals nothing."""
        if answer is None:
            return None
        gold = final_answer(answer)
        gold = answer.strip() if gold is None else gold
        given = final_answer(completion)
        if given is None:
            given = _unmarked(completion, number=_number(_plain(gold)) is not None)
        return self.right if given and gold and _same(given, gold) else 0.0


def final_answer(text: str) -> str | None:
    r"""What the last `####` or `\boxed{}` after any thinking holds; None without one, "" in endless thinking."""
    text = re.split(r"</think(?:ing)?>", text)[-1]
    if re.search(r"<think(?:ing)?>", text):
        return ""
    marked = [(found.start(), _leading(found.group(1))) for found in _MARK.finditer(text)]
    boxed = [(found.start(), _braced(text, found.end())) for found in _BOX.finditer(text)]
    return max(marked + boxed)[1].strip() if marked or boxed else None


def _unmarked(text: str, *, number: bool) -> str:
    """The answer of a text that marks none: its last number where one is wanted, else all that follows the thinking."""
    text = re.split(r"</think(?:ing)?>", text)[-1]
    if not number:
        return text.strip()
    numbers = [found.group() for found in _NUMBER.finditer(text) if any(map(str.isdigit, found.group()))]
    return numbers[-1] if numbers else ""


def _leading(line: str) -> str:
    """What stands after `####`: the number it begins with, or the whole line."""
    found = _NUMBER.match(line)
    return found.group() if found and any(map(str.isdigit, found.group())) else line


def _braced(text: str, start: int) -> str:
    """The text up to the brace that closes the one before `start`; nothing if none does."""
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return ""


def _same(given: str, gold: str) -> bool:
    ours, theirs = _plain(given), _plain(gold)
    numbers = _number(ours), _number(theirs)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return ours.casefold() == theirs.casefold()


def _plain(answer: str) -> str:
    """An answer without currency, per cent, spaces, LaTeX dressing and a final full stop."""
    answer = _FRACTION.sub(r"(\1)/(\2)", answer.replace("{,}", ","))
    answer = _DRESSING.sub(lambda found: found.group(1) or "", answer)
    return answer.rstrip(".")


def _number(plain: str) -> Fraction | None:
    """The exact value of `1,234.50`, `-3/4` or `(1)/(2)`; None for anything else."""
    digits = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    digits = re.sub(r"[()]", "", digits) if re.fullmatch(r"[-+]?\([-+\d.]+\)/\([-+\d.]+\)", digits) else digits
    top, slash, bottom = digits.partition("/")
    try:
        return Fraction(top) / Fraction(bottom) if slash else Fraction(top)
    except (ValueError, ZeroDivisionError):
        return None
