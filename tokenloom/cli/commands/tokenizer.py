"""`tokenloom tokenizer`: show a spec's tokenizer, what encodes with it here, and how fast."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.cli.argument_types import add_whole_spec, utf8
from tokenloom.cli.commands.build import load_limited_spec
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import TokenizerError, message_of
from tokenloom.wording import described_end, described_tokenizer, tokenizer_name

if TYPE_CHECKING:
    from tokenloom.tokenizers import ReferenceTokenizer, Tokenizer
    from tokenloom.tokenizers.fast.proofs import Choice
    from tokenloom.tokenizers.fast.tokenizer import FastEncoder

_FAST_BYTES, _REFERENCE_BYTES = 400_000, 100_000  # to measure with


@dataclass(frozen=True)
class TokenizerResult(Result):
    """A tokenizer, what encodes with it on this machine and why, and the ids of a text.

    `eot` is the text of the end-of-text token, None if it has none; `eot_of_config` says whether only a
    tokenizer_config.json names it. `encoder` is the name and version of the fast encoder that is used, None if the
    library `reference` encodes, as `reason` says. Speeds are in MB of text a second of processor time, None for an
    encoder that is not used. `ids` have no ids around them.
    """

    name: str
    kind: str
    vocab_size: int
    eot_id: int
    eot: str | None
    eot_of_config: bool
    fingerprint: str
    reference: str
    encoder: str | None
    reason: str | None
    reference_speed: float | None
    encoder_speed: float | None
    ids: list[int] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_whole_spec(parser)
    parser.add_argument("--text", type=utf8, metavar="TEXT", help="also show the ids of this text")


def run(spec: str, overrides: list[str], text: str | None, out: Output) -> TokenizerResult:
    """Show the tokenizer of a spec; prove its fast encoder first, if that is still to be done.

    Raises TokenizerError if the tokenizer can't be loaded, or can't encode the text.
    """
    from tokenloom.tokenizers import load_tokenizer, pinned_fields

    definition = load_limited_spec(spec, overrides, None).tokenizer.model_dump()
    pinned = pinned_fields(definition)
    definition |= pinned
    reference = load_tokenizer(definition)
    choice = _choose(reference, definition, out)
    result = TokenizerResult(
        name=tokenizer_name(reference.name, reference.kind, definition),
        kind=reference.kind,
        vocab_size=reference.vocab_size,
        eot_id=reference.eot_id,
        eot=reference.eot,
        eot_of_config="eot" in pinned,
        fingerprint=reference.fingerprint,
        reference=reference.backend,
        encoder=choice.proof.library if choice.proof else None,
        reason=choice.reason or None,
        reference_speed=None if reference.kind == "ids" else _speed(reference, _REFERENCE_BYTES),
        encoder_speed=_speed(_fast_encoder(reference), _FAST_BYTES) if choice.proof else None,
        ids=None if text is None else _ids(_encoder(reference), text),
    )
    _print(out, result)
    return result


def _choose(reference: ReferenceTokenizer, definition: dict[str, Any], out: Output) -> Choice:
    """Return what encodes; prove the fast encoder first if nobody has."""
    from tokenloom.flows.direct import prove_directly
    from tokenloom.tokenizers.fast.known_parts import Unproven
    from tokenloom.tokenizers.fast.proofs import choose

    choice = choose(reference, definition)
    if choice.unproven is None:
        return choice
    out.line(f"proving {choice.unproven} (once per vocabulary and machine); this takes about a minute")
    try:
        prove_directly(definition, reference.fingerprint)
    except Unproven as error:
        return replace(choice, reason=f"{choice.unproven} does not give its ids: {message_of(error)}")
    return choose(reference, definition)


def _fast_encoder(reference: ReferenceTokenizer) -> FastEncoder:
    from tokenloom.tokenizers.fast.gigatoken_library import make_encoder

    return make_encoder(reference)


def _speed(encoder: Tokenizer | FastEncoder, num_bytes: int) -> float:
    """Return how many MB of Python's own sources are encoded in a second of processor time, the second time."""
    import numpy as np
    import pyarrow as pa

    texts, num_left = list[str](), num_bytes
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace")[:num_left])
        num_left -= len(texts[-1])
    array, num_encoded = pa.array(texts, pa.large_string()), sum(len(text.encode()) for text in texts)
    for _ in range(2):
        start = time.process_time()
        encoder.encode(array, np.dtype(np.uint32))
        seconds = time.process_time() - start
    return round(num_encoded / seconds / 1e6, 1)


def _encoder(reference: ReferenceTokenizer) -> Tokenizer:
    """Return the tokenizer that gives the ids of a text; raises TokenizerError for ids whose tokenizer is not known."""
    decoder = getattr(reference, "decoder", reference)
    if decoder is None:
        raise TokenizerError("--text: nothing says which tokenizer made the ids; give tokenizer.decode")
    return decoder


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    import numpy as np
    import pyarrow as pa

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(pa.array([text], pa.large_string()), np.dtype(np.uint32)).tokens.tolist())

    num_before = len(encode("")) - 1
    return encode(text)[num_before:-1]


def _print(out: Output, result: TokenizerResult) -> None:
    described = described_tokenizer({"name": result.name, "kind": result.kind, "vocab_size": result.vocab_size})
    end = described_end(result.eot_id, result.eot, is_of_config=result.eot_of_config)
    out.line(f"tokenizer  {described}, end of text {end}")
    if result.encoder:
        out.line(f"encoder    {result.encoder}: gives the same ids as {result.reference}")
    else:
        out.line(f"encoder    {result.reference}: {result.reason}")
    speeds = [(result.encoder, result.encoder_speed), (result.reference, result.reference_speed)]
    shown = "; ".join(f"{library}: {speed:,} MB/s" for library, speed in speeds if speed is not None)
    if shown:
        out.line(f"speed      {shown} (on one core, Python's own sources)")
    if result.ids is not None:
        out.line(f"ids        {' '.join(map(str, result.ids))}")
