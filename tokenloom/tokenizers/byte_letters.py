"""The letters by which GPT-2's files, and every tokenizer.json of a byte-level BPE, write bytes.

Printable bytes stand for themselves, the others, in order, for the characters 256, 257, ... (openai/gpt-2,
src/encoder.py).
"""

from __future__ import annotations

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES_IN_ORDER = [*_PRINTABLE, *_OTHERS]
LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
_BYTE_OF = {letter: byte for byte, letter in LETTERS.items()}


def bytes_of_letters(token: str) -> bytes:
    """Return the bytes that a token's letters stand for; raises KeyError if one stands for none."""
    return bytes(_BYTE_OF[letter] for letter in token)
