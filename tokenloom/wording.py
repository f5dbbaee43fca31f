"""Text for people: counts, sizes, times, names of tokenizers, near misses; what may be printed, without secrets."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NO_TURN_HINT = "if the template has {% generation %}, check that it gets there for messages of the assistant"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: "1 file", "1,234 files", "2 batches"."""
    plural = noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def counted_rows(rows: Mapping[str, int]) -> str:
    """List how many rows had which fate: "2 filtered, 1 duplicate"."""
    return ", ".join(
        counted(count, "duplicate") if fate == "duplicates" else f"{count:,} {fate}" for fate, count in rows.items()
    )


def shown_bytes(num_bytes: int) -> str:
    """Format a number of bytes in a readable unit: 12.3 GB, 45 MB, 678 bytes."""
    if num_bytes >= 10**9:
        return f"{num_bytes / 1e9:,.1f} GB"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 10**5 else f"{num_bytes:,} bytes"


def percent(share: float) -> str:
    """Format a share as a percentage, rounded down, so that only complete work is at 100%."""
    return f"{int(share * 100)}%"


def clock(seconds: float) -> str:
    """Format an elapsed time whose width changes rarely: 0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """Format a measured time: "12.3 s", "5 min 12 s", "2 h 5 min"."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours:,} h {left} min" if hours else f"{minutes} min {rest} s"


def shown_age(seconds: float) -> str:
    """Format an age or a limit in the largest unit of which it has two: "45 s", "119 min", "2 h", "5 days"."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def seconds_of(text: str) -> float:
    """Parse a time into seconds: "24h" -> 86400.0; units are s, m, h and d, and 0 needs none.

    Raises ValueError for another form.
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])", text)
    if match:
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    if text == "0":
        return 0.0
    raise ValueError(f"{text!r} is not a time: write a number and s, m, h or d, such as 24h, 30m or 7d")


def about(seconds: float) -> str:
    """Format an estimated time: "about 40 s", "about 80 min", "about 3 h"."""
    return f"about {shown_age(max(5.0, seconds))}"


def tokenizer_name(name: str, kind: str, definition: object) -> str:
    """Name a tokenizer for people; one without a name of its own is named by its file.

    Example: {"kind": "huggingface", "path": "/models/llama/tokenizer.json"} -> "llama/tokenizer.json"

    Args:
        name: in the manifest; that of a tokenizer without one is its kind.
        kind: the kind of the tokenizer.
        definition: what it is made from, a mapping with the path of its file; anything else if that is not known.
    """
    path = (definition.get("path") or definition.get("ranks")) if isinstance(definition, Mapping) else None
    return "/".join(str(path).rstrip("/").split("/")[-2:]) if path and name == kind else name


def described_tokenizer(tokenizer: Mapping[str, Any]) -> str:
    """Describe a tokenizer by its name, kind and number of ids: "gpt2 (tiktoken), 50,257 ids"."""
    return f"{tokenizer['name']} ({tokenizer['kind']}), {tokenizer['vocab_size']:,} ids"


def described_end(eot_id: int, eot: str | None, *, is_of_config: bool) -> str:
    """Describe an end-of-text token by its id, text and, if need be, source: "50256 '<|endoftext|>'".

    Args:
        eot_id: its id.
        eot: its text, None if it has none.
        is_of_config: whether only a tokenizer_config.json says that it ends a text.
    """
    source = ", the eos_token of tokenizer_config.json" if is_of_config else ""
    return f"{eot_id}{'' if eot is None else f' {eot!r}'}{source}"


def first_of(names: Sequence[str], count: int = 10) -> str:
    """List the first names, and count the others: "a, b and 3 more"; "none" without any."""
    more = f" and {len(names) - count:,} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more or "none"


def closest(given: str, allowed: Iterable[str]) -> str | None:
    """Find the allowed value closest to what was given, in any case; None if none is close."""
    import difflib  # only a wrong word needs it

    lower = {value.lower(): value for value in allowed}
    close = difflib.get_close_matches(given.lower(), lower, n=1)
    return lower[close[0]] if close else None


def near_miss(given: str, allowed: Iterable[str]) -> str:
    """Ask for the allowed value closest to what was given, "" if none is close."""
    close = closest(given, allowed)
    return f"Did you mean {close}?" if close else ""


def did_you_mean(given: str, allowed: Sequence[str]) -> str:
    """List the allowed values, preceded by the one closest to what was given, if one is close."""
    return f"{near_miss(given, allowed)} Allowed: {', '.join(allowed)}".lstrip()


def shown_time(at: str) -> str:
    """Shorten an ISO 8601 time in UTC to the minute: "2026-11-23 11:15"."""
    return at[:16].replace("T", " ")


def shortened(text: str, width: int) -> str:
    """Shorten a text to at most `width` characters; "..." ends it if some are left out."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def print_status(text: str) -> None:
    """Print a line on stderr, at once."""
    sys.stderr.write(printable_line(text) + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Escape the control characters of a text, so that a terminal or a page does not act on them.

    Marks that change the direction of what follows are escaped too. Line ends, tabs and all kinds of spaces are kept.
    """
    kept = {c for c in set(text) if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs"}
    return "".join(c if c in kept else repr(c)[1:-1] for c in text)


def locale_advice() -> str:
    """Say how to make Python read names of files as UTF-8, to end a message; "" if it does."""
    encoding = sys.getfilesystemencoding()
    return "" if encoding == "utf-8" else f"; names of files are {encoding} in this locale: set PYTHONUTF8=1"


def printable_line(text: str) -> str:
    """Escape the control characters and line ends of a text, so that it stays one line of a terminal."""
    return text if text.isprintable() else printable(text).replace("\n", "\\n")


def _spelled(word: str) -> str:
    """Return a pattern of a word whose letters may be percent-encoded, as servers decode them: `%73ig` is `sig`."""
    return "".join(f"(?:{c}|%{ord(c):02x}|%{ord(c.upper()):02x})" for c in word)


_SECRET_WORDS = ("sig", "token", "secret", "passw", "passphrase", "pwd", "key", "jwt", "auth", "bearer", "credential")
# A password before the host, or a token or signature after the path; `author` is not a secret.
SECRET_URL = re.compile(
    r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?<=http://|ttps://)[^/@\s]+(?=@)"
    rf"|(?<=[?&#;])[^=&?#;\s]*(?:{'|'.join(map(_spelled, _SECRET_WORDS))})(?!ors?=)[^=&?#;\s]*=[^&\s'\"]*",
    re.I,
)
# Names of environment variables (TOKENLOOM_HOME is not secret) and of options of fsspec.
_SECRET_NAME = re.compile(
    "SECRET|TOKEN(?!LOOM|IZERS)|PASSWORD|PASSWD|PASSPHRASE|JWT|API_?KEY|AUTH_STRING|ACCESS_KEY|ACCOUNT_KEY|CONNECTION_STRING|^KEY$",
    re.I,
)
_MIN_SECRET_CHARS = 8  # a shorter value is not a secret and may occur in any word


def redacted(text: str) -> str:
    """Return `text` with *** for the secrets of URLs, of environment variables and of fsspec's options."""
    text = SECRET_URL.sub("***", text)
    config = sys.modules.get("fsspec.config")  # not imported: no options set
    options = (option for options in (config.conf.values() if config else ()) for option in options.items())
    for name, value in (*os.environ.items(), *options):
        if isinstance(value, str) and len(value) >= _MIN_SECRET_CHARS and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return text
