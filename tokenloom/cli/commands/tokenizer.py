"""`tokenloom tokenizer`: show a spec's tokenizer, what encodes with it here, and how fast."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenloom.cli.argument_types import add_whole_spec, utf8
from tokenloom.cli.commands.build import load_limited_spec
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import TokenizerError
from tokenloom.wording import described_end, described_tokenizer, tokenizer_name

if TYPE_CHECKING:
    from tokenloom.tokenizers import ReferenceTokenizer, Tokenizer
    from tokenloom.tokenizers.base import TokenizerIdentity
    from tokenloom.tokenizers.fast.choice import Choice


@dataclass(frozen=True)
class TokenizerResult(Result):
    """A tokenizer, what encodes with it on this machine and why, and the ids of a text.

    `eot` is the text of the end-of-text token, None if it has none; `eot_of_config` says whether only a
    tokenizer_config.json names it. `encoder` is the name and version of the fast encoder that is used, None if the
    library `reference` encodes, as `reason` says. Speeds are in MB of text a second of processor time, None if they
    could not be measured; `encoder_speed` is also that of an encoder that is not used. `ids` have no ids around them.
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
    from tokenloom.tokenizers.fast.machine_check import check_here
    from tokenloom.tokenizers.identity import identity_of

    definition = load_limited_spec(spec, overrides, None).tokenizer.model_dump()
    pinned = pinned_fields(definition)
    definition |= pinned
    reference = load_tokenizer(definition)
    known = identity_of(reference)
    choice = _choose(known, definition, out)
    speeds = choice.speeds
    if speeds is None and reference.kind != "ids":
        speeds = check_here(definition, known.encoder_key or known.fingerprint, None).speeds
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
        reference_speed=speeds.reference if speeds else None,
        encoder_speed=speeds.fast if speeds else None,
        ids=None if text is None else _ids(_encoder(reference), text),
    )
    _print(out, result)
    return result


def _choose(known: TokenizerIdentity, definition: dict[str, Any], out: Output) -> Choice:
    """Return what encodes; prove the fast encoder first if nobody has."""
    from tokenloom.flows.direct import prove_directly
    from tokenloom.tokenizers.fast.choice import choose

    choice = choose(known, definition, again=True)
    if choice.unproven is None:
        return choice
    out.line(f"proving {choice.unproven} (once per vocabulary and machine); this takes about a minute")
    prove_directly(definition, known.fingerprint)
    return choose(known, definition, again=True)


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
        out.line(f"encoder    {result.encoder}: gives the same ids as {result.reference} (checked on this machine)")
    else:
        out.line(f"encoder    {result.reference}: {result.reason}")
    speeds = [(result.encoder or "gigatoken", result.encoder_speed), (result.reference, result.reference_speed)]
    shown = "; ".join(f"{library}: {speed:,} MB/s" for library, speed in speeds if speed is not None)
    if shown:
        out.line(f"speed      {shown} (on one core, Python's own sources)")
    if result.ids is not None:
        out.line(f"ids        {' '.join(map(str, result.ids))}")
