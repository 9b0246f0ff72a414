"""Rewards on answers as models really write them."""

import pytest

from forge.rewards import MathReward, PlacesReward

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("so it is #### 42\n" + "and then 7 more. " * 25, "42", 1.0),
        ("#### 42 " + "x" * 400, "42", 1.0),
        ("", "42", 0.0),
        ("42", "", 0.0),
        (r"\boxed{}", "42", 0.0),
        ("the total is $1,234.00", "1234", 1.0),
        ("-$5", "-5", 1.0),
        ("50%", "50", 1.0),
        (r"first \boxed{13}, no: \boxed{12}", "12", 1.0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{1{,}234}", "1234", 1.0),
        (r"\boxed{\text{Yes}}", "yes", 1.0),
        (r"\boxed{x^2}", "x^2", 1.0),
        (r"\boxed{x^3}", "x^2", 0.0),
        (r"\boxed{3", "3", 0.0),
        ("3/4", "0.75", 1.0),
        ("0.333", "1/3", 0.0),
        ("10 - 3 = 7.", "7", 1.0),
        ("<think>it may be 7</think> It is 42.", "42", 1.0),
        ("<think>it may be 42", "42", 0.0),
        ("<thinking>42</thinking>", "42", 0.0),
        ("42", "a worked solution\n#### 42", 1.0),
        ("41", "42", 0.0),
        ("1/0", "1", 0.0),
        ("north", "North", 1.0),
    ],
)
def test_math_reward(completion, answer, expected):
    assert MathReward()("a question", completion, answer) == expected


def test_no_gold_answer_cannot_be_scored():
    assert MathReward()("a question", "42", None) is None


@pytest.mark.parametrize(
    ("completion", "expected"), [("123457", 1.0), ("123475", 0.5 * 4 / 6), ("12345", 0.0), ("", 0.0), ("1234577", 0.0)]
)
def test_places_reward(completion, expected):
    assert PlacesReward()("352174=", completion, "123457") == pytest.approx(expected)
    assert set(PlacesReward().parts(completion, "123457")) == {"places", "exact"}
