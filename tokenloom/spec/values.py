"""What texts of a spec may be: patterns with their rules in words, and names; without pydantic, for the workers."""

from __future__ import annotations

NAME_PATTERN = r"^[a-z][a-z0-9._-]{0,63}$"
MODEL_NAME_PATTERN = r"^(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$"
#: each rule follows "must be"
RULES = {
    NAME_PATTERN: "a lower-case letter, then at most 63 lower-case letters, digits, '.', '_' or '-'",
    MODEL_NAME_PATTERN: "a name such as org/model, of letters, digits, '.', '_' and '-'; give a file as path",
    r"^[a-z][a-z0-9_-]{0,31}$": "a lower-case letter, then at most 31 lower-case letters, digits, '_' or '-'",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "the name of a function, as package.module:function",
    r'^[^"\r\n\x00]': "one character, not a double quote, a line end or NUL",
    r"^[^\r\n\x00]*$": "one character, not a line end or NUL",
    r"^[\w.-]+$": "letters, digits, '.', '_' or '-'",
    "^[a-z][a-z0-9+.-]*$": "a lower-case letter, then lower-case letters, digits, '+', '.' or '-'",
    "^[a-z0-9-]+$": "lower-case letters, digits or '-'",
}
LAYOUTS = ("messages", "sharegpt", "alpaca", "prompt_completion")  # chat/layouts.py reads them
WHOLE_ROW = "."  # the `text` or `messages` of a source whose rows are texts or conversations themselves
