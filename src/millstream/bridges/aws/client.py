"""Clients of AWS services, as bridges and sinks share them: region, endpoint, and which failures pass by themselves.

Keys are those that boto3 finds (environment, profile, role): they are never part of a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from millstream.errors import InvalidInput, MillstreamError

CONNECT_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
PASSING_CODES = (
    "ExpiredIteratorException",  # of Kinesis: the next one is asked for
    "InternalFailure",
    "InternalError",
    "KMSThrottlingException",
    "LimitExceededException",
    "OverLimit",
    "ProvisionedThroughputExceededException",
    "RequestThrottled",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
)
SERVER_ERROR = 500
Done = TypeVar("Done")


@dataclass(frozen=True)
class AwsAccount:
    """Where services are. Without a region, boto3's own configuration decides."""

    region: str | None = None
    endpoint: str | None = None
    """Of a service that is not Amazon's, such as one for tests."""
    timeout_seconds: float = TIMEOUT_SECONDS

    def client(self, service: str) -> Any:
        boto3 = installed()
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=min(CONNECT_SECONDS, self.timeout_seconds),
            read_timeout=self.timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": 1},  # the caller knows what it has to repeat
        )
        try:
            return boto3.session.Session().client(
                service, region_name=self.region, endpoint_url=self.endpoint, config=config
            )
        except (BotoCoreError, ValueError) as error:
            raise InvalidInput(f"{service} cannot be used: {error}", next_step="give a region and a URL") from error


def call(request: Callable[[], Done], passing: type[MillstreamError], final: type[MillstreamError], where: str) -> Done:
    """The answer to a request. A failure that may pass by itself is raised as `passing`, and any other as `final`."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        return request()
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        what = f"AWS answers: {error}"
        if status >= SERVER_ERROR or code.rpartition(".")[2] in PASSING_CODES:
            raise passing(what, where=where, next_step="it is tried again") from error
        raise final(what, where=where, next_step="check the name, the region and the permissions") from error
    except HTTPClientError as error:
        raise passing(f"no answer: {error}", where=where, next_step="it is tried again") from error
    except BotoCoreError as error:
        raise final(str(error), where=where, next_step="check the keys and the region") from error


def installed() -> Any:
    """The client library."""
    try:
        import boto3
        import boto3.session
    except ImportError as error:
        raise InvalidInput("AWS needs the package boto3", next_step="pip install 'millstream[aws]'") from error
    return boto3
