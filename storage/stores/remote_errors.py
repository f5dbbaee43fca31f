"""What an error of a remote store means: missing, forbidden, likely to pass; and its text without credentials.

Each kind of store raises errors of its own libraries, none of which need be installed: they are told apart by their
HTTP status, by the builtin errors they derive from, and by the names of their classes.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from typing import Literal

Kind = Literal["missing", "exists", "forbidden", "shorter", "passing", "other"]

# The same as in spec_base.py, from which storage must not import: a password, or a token or signature.
SECRET_URL = re.compile(
    r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?<=http://|ttps://)[^/@\s]+(?=@)"
    r"|(?<=[?&#])[^=&\s]*(?:sig|token|secret|password|key)[^=&\s]*=[^&\s'\"]*",
    re.I,
)
# Of variables of the environment (TOKENLOOM_HOME is none), and of options of fsspec.
_SECRET_NAME = re.compile("SECRET|TOKEN(?!LOOM|IZERS)|PASSWORD|ACCESS_KEY|ACCOUNT_KEY|CONNECTION_STRING|^KEY$", re.I)
_MARK = "may_pass"  # an attribute of errors
_MIN_SECRET_CHARS = 8  # a shorter value is no secret, and might stand in any word

_FORBIDDEN = {
    "botocore.NoCredentialsError",
    "botocore.PartialCredentialsError",
    "botocore.CredentialRetrievalError",
    "botocore.ProfileNotFound",
    "botocore.TokenRetrievalError",
    "botocore.NoAuthTokenError",
    "google.DefaultCredentialsError",
    "google.RefreshError",
    "azure.ClientAuthenticationError",
}
_LASTING = {"botocore.SSLError", "botocore.InvalidProxiesConfigError", "aiohttp.ClientSSLError", "aiohttp.InvalidURL"}
_PASSING = {
    "botocore.FlexibleChecksumError",
    "botocore.HTTPClientError",
    "botocore.IncompleteReadError",
    "botocore.ResponseParserError",
    "aiohttp.ClientConnectionError",
    "aiohttp.ClientPayloadError",
    "azure.ServiceRequestError",
    "azure.ServiceResponseError",
    "urllib3.HTTPError",
    "requests.ConnectionError",
    "requests.Timeout",
}
_CODES: dict[str, Kind] = {  # of S3, whose HTTP status is 400
    **dict.fromkeys(("BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"), "passing"),
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), "forbidden"),
}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_GOOGLE_BUCKET = re.compile(r"(^|/)b/[^/]+/o$")  # asked for a listing: all that its library says of a missing bucket
_PASSING_NUMBERS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EIO,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    getattr(errno, "EREMOTEIO", errno.EIO),
}


def redacted(text: str) -> str:
    """Return `text` with *** for secrets of URLs, variables such as AWS_SECRET_ACCESS_KEY, and options of fsspec."""
    text = SECRET_URL.sub("***", text)
    config = sys.modules.get("fsspec.config")  # what nobody imported tells no option of its own
    options = (option for options in (config.conf.values() if config else ()) for option in options.items())
    for name, value in (*os.environ.items(), *options):
        if isinstance(value, str) and len(value) >= _MIN_SECRET_CHARS and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return text


def reason_of(error: BaseException) -> str:
    """Return what an error says, in one line without credentials."""
    text = " ".join(str(error).split())
    return redacted(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def harmless(error: BaseException) -> BaseException | None:
    """Return the error, to show where it came from, unless its text or that of a cause holds credentials."""
    texts = [str(link) for link in _chain(error)]
    return error if all(redacted(text) == text for text in texts) else None


def kind_of(error: BaseException) -> Kind:
    """Return what an error of a store means: "passing" if the same request may succeed a little later."""
    if any(isinstance(link, FileExistsError) or _http_status(link) == 412 for link in _chain(error)):
        return "exists"
    if any(_is_busy(_http_status(link)) for link in _chain(error)):
        return "passing"  # some stores say FileNotFoundError then
    for link in _chain(error):
        if kind := _CODES.get(_code(link)):
            return kind
    for link in _chain(error):
        status, names = _http_status(link), _names(link)
        if isinstance(link, FileNotFoundError) or status == 404:
            return "missing"
        if isinstance(link, PermissionError) or status in (401, 403) or names & _FORBIDDEN:
            return "forbidden"
        if status == 416:
            return "shorter"
        if names & _LASTING:
            return "other"
        if _is_network(link) or names & _PASSING:
            return "passing"
    return "other"


def is_bucket_missing(error: BaseException) -> bool:
    """Return whether a store says that the bucket or container is missing, not only what was asked of it."""
    return any(_code(link) in _NO_BUCKET or _GOOGLE_BUCKET.search(str(link)) for link in _chain(error))


def may_pass(error: BaseException) -> bool:
    """Return whether the same work may succeed later: a lost worker, the network, a busy server; not a damaged file.

    An error that comes from another process lost what it was raised from; `mark_passing` left a mark on it there.
    """
    marked: bool | None = getattr(error, _MARK, None)
    if marked is not None:
        return marked
    return kind_of(error) == "passing" and not any(isinstance(link, EOFError) for link in _chain(error))


def mark_passing(error: BaseException, passing: bool) -> None:
    """Let `may_pass` answer so for this error, in another process too."""
    setattr(error, _MARK, passing)


def _is_busy(status: int) -> bool:
    return (status >= 500 and status != 501) or status in (408, 409, 429)  # 409: two conditional writes met


def _is_network(error: BaseException) -> bool:
    number = error.errno if isinstance(error, OSError) else None
    return isinstance(error, ConnectionError | TimeoutError | EOFError) or number in _PASSING_NUMBERS


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it was raised from; a loop of them ends."""
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _http_status(error: BaseException) -> int:
    """Return the HTTP status that an error carries, 0 if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for name in ("status", "status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            return int(value)
    return 0


def _code(error: BaseException) -> str:
    """Return the code of S3's or Azure's that an error carries, "" if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "error_code", None) or "")


def _names(error: BaseException) -> set[str]:
    """Return "package.Class" of an error's classes."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
