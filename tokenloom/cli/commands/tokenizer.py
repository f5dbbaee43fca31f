"""`tokenloom tokenizer`: show a spec's tokenizer, what encodes with it here, and how fast."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.cli.argument_types import add_whole_spec, utf8
from tokenloom.cli.commands.build import load_limited_spec
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.wording import described_end, described_tokenizer, tokenizer_name

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenloom.tokenizers import Tokenizer
    from tokenloom.tokenizers.fast.choice import Choice

_MEASURED_BYTES = 500_000


@dataclass(frozen=True)
class TokenizerResult(Result):
    """A tokenizer, what encodes with it on this machine and why, and the ids of a text.

    `eot` is the text of the end-of-text token, None if it has none; `eot_of_config` says whether only a
    tokenizer_config.json names it. `encoder` is the name and version of the fast encoder that is used, None if the
    library `reference` encodes. `reason` says why it is not the fastest library, None if it is. Speeds are in MB of
    text a second of processor time. `ids` have no ids around them.
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
    reference_speed: float
    encoder_speed: float | None
    ids: list[int] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_whole_spec(parser)
    parser.description = (
        "Show a spec's tokenizer, what encodes with it and how fast. The first time on a machine, a fast encoder is "
        "compared with the tokenizer's library, which takes a minute or two."
    )
    parser.add_argument("--text", type=utf8, help="show the ids of this text")


def run(spec: str, overrides: list[str], text: str | None, out: Output) -> TokenizerResult:
    """Show the tokenizer of a spec; compare its fast encoder with its library first, if nobody did on this machine.

    Raises:
        TokenizerError: the tokenizer can't be loaded, or can't encode the text.
        StoreError: the cache can't keep what the comparison finds.
    """
    from tokenloom.tokenizers import load_tokenizer, pinned_fields
    from tokenloom.tokenizers.fast.choice import backend_of

    definition = load_limited_spec(spec, overrides, None).tokenizer.model_dump()
    pinned = pinned_fields(definition)
    definition |= pinned
    reference = load_tokenizer(definition)
    choice = _choose(reference, backend_of(definition), out)
    texts = _measured_texts()
    result = TokenizerResult(
        name=tokenizer_name(reference.name, reference.kind, definition),
        kind=reference.kind,
        vocab_size=reference.vocab_size,
        eot_id=reference.eot_id,
        eot=reference.eot,
        eot_of_config="eot" in pinned,
        fingerprint=reference.fingerprint,
        reference=reference.backend,
        encoder=choice.encoder,
        reason=choice.reason,
        reference_speed=_speed(reference, texts),
        encoder_speed=_speed(choice.tokenizer, texts) if choice.encoder else None,
        ids=None if text is None else _ids(choice.tokenizer, text),
    )
    _print(out, result)
    return result


def _choose(reference: Tokenizer, backend: str, out: Output) -> Choice:
    """Return what encodes; probe the fast encoder first if that is still to be done."""
    from tokenloom.tokenizers.fast.choice import choose
    from tokenloom.tokenizers.fast.tokenizer import NO_CHECK

    choice = choose(reference, backend, check=NO_CHECK, probes_again=True)
    if choice.pending is None:
        return choice
    from tokenloom.tokenizers.fast.probe_process import run_probe
    from tokenloom.tokenizers.fast.verdict import check_cache

    check_cache()
    out.line(f"probing {choice.pending.NAME} (once per machine and tokenizer); this takes a minute or two")
    run_probe(reference, choice.pending, lambda what, num_texts: None)
    return _choose(reference, backend, out)


def _measured_texts() -> pa.Array:
    """Return some of Python's own sources, one text a file."""
    import pyarrow as pa

    texts, num_bytes = [], 0
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        num_bytes += path.stat().st_size
        if num_bytes >= _MEASURED_BYTES:
            break
    return pa.array(texts, pa.large_string())


def _speed(tokenizer: Tokenizer, texts: pa.Array) -> float:
    """Return how many MB of text are encoded in a second of processor time, the second time."""
    import numpy as np

    from tokenloom.tokenizers.base import text_bytes

    for _ in range(2):
        start = time.process_time()
        tokenizer.encode(texts, np.dtype(np.uint32))
        seconds = time.process_time() - start
    return round(len(text_bytes(texts)[0]) / seconds / 1e6, 1)


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
        out.line(f"encoder    {result.encoder}: gives the same ids as {result.reference} (checked on this machine)")
        if result.reason:
            out.line(f"           not the fastest: {result.reason}")
        speed = f"{result.encoder_speed:,} MB/s; {result.reference}: {result.reference_speed:,} MB/s"
    else:
        out.line(f"encoder    {result.reference}: {result.reason}")
        speed = f"{result.reference_speed:,} MB/s"
    out.line(f"speed      {speed} (on one core, Python's own sources)")
    if result.ids is not None:
        out.line(f"ids        {' '.join(map(str, result.ids))}")
