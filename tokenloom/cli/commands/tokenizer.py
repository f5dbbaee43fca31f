"""`tokenloom tokenizer`: show a spec's tokenizer, the encoder that a build uses here, and its speed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tokenloom.cli.arguments import Argument, Overrides, Spec
from tokenloom.cli.commands.build import load_limited_spec
from tokenloom.cli.output import Json, Output, Result
from tokenloom.errors import TokenizerError, message_of
from tokenloom.wording import described_end, described_tokenizer, tokenizer_name

if TYPE_CHECKING:
    from tokenloom.tokenizers import ReferenceTokenizer, Tokenizer
    from tokenloom.tokenizers.fast.proofs import Choice
    from tokenloom.tokenizers.fast.tokenizer import FastEncoder

_FAST_BYTES, _REFERENCE_BYTES = 400_000, 100_000  # to measure with


def tokenizer(
    spec: Spec,
    *,
    overrides: Overrides = (),
    text: Annotated[str | None, Argument("TEXT")] = None,
    out: Output,
) -> Result:
    """Show a spec's tokenizer, what encodes with it and how fast.

    A fast encoder that is not proven for its vocabulary is compared with the tokenizer's library first, which takes
    about a minute.

    Args:
        text: also show the ids of this text

    Example:
        tokenizer news.yaml --text 'Hello, world'
    """
    from tokenloom.tokenizers import load_tokenizer, pinned_fields

    definition = load_limited_spec(spec, overrides).tokenizer.model_dump()
    pinned = pinned_fields(definition)
    definition |= pinned
    reference = load_tokenizer(definition)
    choice = _choose(reference, definition, out)
    encoder_speed = None
    if choice.proof:
        from tokenloom.tokenizers.fast.tokenizer import make_encoder

        encoder_speed = _speed(make_encoder(reference), _FAST_BYTES)
    value = {
        "name": tokenizer_name(reference.name, reference.kind, definition),
        "kind": reference.kind,
        "vocab_size": reference.vocab_size,
        "eot_id": reference.eot_id,
        "eot": reference.eot,
        "eot_of_config": "eot" in pinned,
        "fingerprint": reference.fingerprint,
        "reference": reference.backend,
        "encoder": choice.proof.library if choice.proof else None,
        "reason": choice.reason or None,
        "reference_speed": None if reference.kind == "ids" else _speed(reference, _REFERENCE_BYTES),
        "encoder_speed": encoder_speed,
        "ids": None if text is None else _ids(reference, text),
    }
    _print(out, value)
    return Result(value)


def _choose(reference: ReferenceTokenizer, definition: dict[str, Any], out: Output) -> Choice:
    """Choose the encoder; prove the fast one first if it is not proven for this vocabulary."""
    from tokenloom.flows.direct import prove_directly
    from tokenloom.tokenizers.fast import Unproven
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


def _speed(encoder: Tokenizer | FastEncoder, num_bytes: int) -> float:
    """Measure the MB of Python's own sources that are encoded in a second of processor time, the second time."""
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


def _ids(reference: ReferenceTokenizer, text: str) -> list[int]:
    """Encode a text; raise TokenizerError for a vocabulary of ids whose tokenizer is not known."""
    import numpy as np
    import pyarrow as pa

    tokenizer: Tokenizer | None = getattr(reference, "decoder", reference)
    if tokenizer is None:
        raise TokenizerError("--text: nothing says which tokenizer made the ids; give tokenizer.decode")
    tokens = tokenizer.encode(pa.array([text], pa.large_string()), np.dtype(np.uint32)).tokens
    return list(tokens[len(tokenizer.bos_ids) : -1].tolist())


def _print(out: Output, value: Json) -> None:
    end = described_end(value["eot_id"], value["eot"], is_of_config=value["eot_of_config"])
    out.line(f"tokenizer  {described_tokenizer(value)}, end of text {end}")
    encoder, reference = value["encoder"], value["reference"]
    if encoder:
        out.line(f"encoder    {encoder}: gives the same ids as {reference}")
    else:
        out.line(f"encoder    {reference}: {value['reason']}")
    speeds = [(encoder, value["encoder_speed"]), (reference, value["reference_speed"])]
    shown = "; ".join(f"{library}: {speed:,} MB/s" for library, speed in speeds if speed is not None)
    if shown:
        out.line(f"speed      {shown} (on one core, Python's own sources)")
    if value["ids"] is not None:
        out.line(f"ids        {' '.join(map(str, value['ids']))}")
