"""Decoder-only language models: the shape, the forward, and reading and writing them."""

from forge.models.config import DecoderConfig
from forge.models.decoder import Decoder
from forge.models.gguf_file import find_gguf, load_gguf
from forge.models.huggingface import load, save

__all__ = ["Decoder", "DecoderConfig", "find_gguf", "load", "load_gguf", "save"]
