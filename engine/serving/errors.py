"""What a client is told of a request that is refused, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from engine.errors import EngineStoppedError, QueueFullError, RankError, RequestError

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
"""Of status codes; all others are the client's own fault."""


class ApiError(Exception):
    """A refusal with its status code; `param` is the field that was wrong, `code` what clients ask.

    Parameters
    ----------
    status
        400, 401, 404, 405, 408, 413, 422, 429, 500 or 503.
    message
        A sentence: what was wrong, and what would be right.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of a reply."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        told = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": told}

    @property
    def headers(self) -> dict[str, str]:
        """Those of a reply: whoever was turned away for now may come again."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


def told(error: BaseException) -> ApiError:
    """What a client is told of an error that a request met."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return ApiError(429, f"The server is busy: {error}", code="queue_full")
    if isinstance(error, EngineStoppedError):
        return ApiError(503, str(error), code="engine_stopped")
    if isinstance(error, RankError):
        return ApiError(503, "The engine has stopped: a rank was lost.", code="engine_stopped")
    if isinstance(error, RequestError):
        return ApiError(400, str(error))
    return ApiError(500, f"The request failed: {type(error).__name__}: {error}".rstrip(": "))
