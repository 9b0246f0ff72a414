"""Generation: requests in, completions with log-probabilities and policy versions out."""

from forge.generation.engine import Engine
from forge.generation.request import Completion, FinishReason, Request, SamplingParams

__all__ = ["Completion", "Engine", "FinishReason", "Request", "SamplingParams"]
