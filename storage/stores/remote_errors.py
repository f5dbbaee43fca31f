"""The meaning of a remote store's errors: missing, forbidden, transient, ...; their text without credentials.

Each kind of store raises errors of its own libraries, none of which need be installed. So errors are classified by
their HTTP status, the builtin errors they derive from, and the names of their classes.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Literal

from tokenloom.errors import named_message_of, text_of
from tokenloom.wording import redacted

Kind = Literal["missing", "exists", "forbidden", "shorter", "transient", "other"]


_MARK = "is_transient"  # an attribute of errors

_CLASSES: tuple[tuple[Kind, str, str], ...] = (  # kind, packages, classes; the class nearest to the error's decides
    ("forbidden", "botocore", "NoCredentialsError PartialCredentialsError CredentialRetrievalError ProfileNotFound"),
    ("forbidden", "botocore", "TokenRetrievalError NoAuthTokenError"),
    ("forbidden", "google", "DefaultCredentialsError RefreshError"),
    ("forbidden", "azure", "ClientAuthenticationError"),
    ("other", "botocore", "SSLError InvalidProxiesConfigError"),
    ("other", "aiohttp", "ClientSSLError InvalidURL"),
    ("other", "httpx httpx2", "ConnectError"),  # the Hugging Face Hub, on a machine without a network
    ("other", "huggingface_hub", "OfflineModeIsEnabled"),
    ("transient", "botocore", "FlexibleChecksumError HTTPClientError IncompleteReadError ResponseParserError"),
    ("transient", "aiohttp", "ClientConnectionError ClientPayloadError"),
    ("transient", "gcsfs", "ChecksumError"),
    ("transient", "azure", "ServiceRequestError ServiceResponseError"),
    ("transient", "httpx httpx2", "TransportError"),
    ("transient", "urllib3", "HTTPError"),
    ("transient", "requests", "ConnectionError Timeout"),
)
_KINDS = {(package, name): kind for kind, of, names in _CLASSES for package in of.split() for name in names.split()}
_STATUSES: dict[int, Kind] = {401: "forbidden", 403: "forbidden", 404: "missing", 416: "shorter"}
_CODES: dict[str, Kind] = {  # of S3, all with HTTP status 400
    **dict.fromkeys(("BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"), "transient"),
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), "forbidden"),
}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_GOOGLE_BUCKET = re.compile(r"(^|/)b/[^/]+/o$")  # the URL of a listing: all that the library reports
_RATE_LIMIT = re.compile(r"\br=0;\s*t=(\d+)")  # no request is left for t seconds
_TRANSIENT_ERRNOS = {errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH}


class StrangeAnswer(ConnectionError):
    """What answered a request is not the store: the page of a proxy, or of another server."""


class Unanswered(ConnectionError):
    """A request that a library has tried as often as it may."""


def reason_of(error: BaseException) -> str:
    """Return the class and text of an error, in one line without credentials."""
    return redacted(named_message_of(error))


def without_secrets(error: BaseException) -> BaseException | None:
    """Return the error to chain as a cause; None if its text, or that of one of its causes, contains credentials."""
    texts = [text_of(link) for link in chain_of(error)]
    return error if all(redacted(text) == text for text in texts) else None


def kind_of(error: BaseException) -> Kind:
    """Return what an error of a store means: "transient" if the same request may succeed a little later."""
    if any(isinstance(link, FileExistsError) or _http_status(link) == 412 for link in chain_of(error)):
        return "exists"
    if any(_is_busy(_http_status(link)) for link in chain_of(error)):
        return "transient"  # some libraries raise FileNotFoundError for it
    for link in chain_of(error):
        if kind := _CODES.get(_code(link)):
            return kind
    for link in chain_of(error):
        if isinstance(link, FileNotFoundError) and link.__cause__ is None:
            return "missing"  # one with a cause is fsspec's for whatever fails over HTTP
        if isinstance(link, PermissionError) or _code(link) == "400":  # S3's answer to HEAD, also of an expired token
            return "forbidden"
        if kind := _STATUSES.get(_http_status(link)) or _kind_of_class(link):
            return kind
        if _is_network(link):
            return "transient"
    return "missing" if any(isinstance(link, FileNotFoundError) for link in chain_of(error)) else "other"


def is_permanent(error: BaseException) -> bool:
    """Return whether an error of a library of the network says that a later request will not succeed either."""
    return any(_kind_of_class(link) == "other" for link in chain_of(error))


def is_bucket_missing(error: BaseException) -> bool:
    """Return whether an error says that the bucket or container is missing, not only the file."""
    return any(_code(link) in _NO_BUCKET or _GOOGLE_BUCKET.search(text_of(link)) for link in chain_of(error))


def is_transient(error: BaseException) -> bool:
    """Return whether the same work may succeed later: a lost worker, the network, a busy server; not a damaged file.

    An error from another process has lost the errors it was raised from; `mark_transient` has marked it there.
    """
    marked: bool | None = getattr(error, _MARK, None)
    if marked is not None:
        return marked
    return kind_of(error) == "transient" and not any(isinstance(link, EOFError) for link in chain_of(error))


def mark_transient(error: BaseException, transient: bool) -> None:
    """Make `is_transient` return this answer for the error, in other processes too."""
    setattr(error, _MARK, transient)


def seconds_to_wait(error: BaseException) -> float | None:
    """Return after how many seconds a busy server wants the request again; None if it does not say.

    Servers say so in the header Retry-After, the Hugging Face Hub in RateLimit: "api";r=0;t=55.
    """
    for link in chain_of(error):
        headers = getattr(getattr(link, "response", link), "headers", None)
        if headers is None or not _is_busy(_http_status(link)):
            continue
        retry_after = str(headers.get("Retry-After", ""))
        limit = _RATE_LIMIT.search(str(headers.get("RateLimit", "")))
        if retry_after.isdecimal():
            return float(retry_after)
        if limit:
            return float(limit[1])
    return None


def _is_busy(status: int) -> bool:
    return (status >= 500 and status != 501) or status in (408, 409, 429)  # 409: two conditional writes collided


def _is_network(error: BaseException) -> bool:
    number = error.errno if isinstance(error, OSError) else None
    return isinstance(error, ConnectionError | TimeoutError | EOFError) or number in _TRANSIENT_ERRNOS


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it was raised from, at most 8, as they may form a loop."""
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _http_status(error: BaseException) -> int:
    """Return the HTTP status of an error, 0 if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for holder in (error, response):  # libraries of HTTP have it in the response
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
                return int(value)
    return 403 if text_of(error).startswith("Forbidden: ") else 0  # gcsfs raises a bare OSError


def _code(error: BaseException) -> str:
    """Return the error code of S3 or Azure, "" if the error has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "error_code", None) or "")


def _kind_of_class(error: BaseException) -> Kind | None:
    """Return the kind of the class of an error, or of the nearest class that it derives from; None if none has one."""
    classes = ((each.__module__.partition(".")[0], each.__name__) for each in type(error).__mro__)
    return next((_KINDS[each] for each in classes if each in _KINDS), None)
