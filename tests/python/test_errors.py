"""Every status and every detail becomes an exception whose fields say the same."""

from __future__ import annotations

import pickle
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

import blockd
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import Failure, FakeServer, retry_after
from support.problems import system

C = grpc.StatusCode
HANDLE = b"handle"

CASES: "list[tuple[Any, Any, Any, type, type, dict[str, Any]]]" = [
    (C.INVALID_ARGUMENT, pb.InvalidField(field="f", came="c", expected="e"), None,
     blockd.InvalidArgument, ValueError, {"field": "f", "came": "c", "expected": "e"}),
    (C.INVALID_ARGUMENT, pb.NotPositiveDefinite(system=1, block=2, row=3, minor=12, elimination_order=True),
     None, blockd.NotPositiveDefinite, np.linalg.LinAlgError,
     {"system": 1, "block": 2, "row": 3, "minor": 12, "elimination_order": True}),
    (C.INVALID_ARGUMENT, pb.SingularCovariance(matrix="Q", step=2, row=3), None, blockd.SingularCovariance,
     np.linalg.LinAlgError, {"matrix": "Q", "step": 2, "row": 3}),
    (C.INVALID_ARGUMENT, pb.NotSmoothable(reason=pb.NotSmoothable.CONTRADICTION, system=1, step=2, row=3), None,
     blockd.NotSmoothable, np.linalg.LinAlgError,
     {"reason": "CONTRADICTION", "system": 1, "step": 2, "row": 3, "directions": 0, "means_error": 0.0}),
    (C.NOT_FOUND, pb.HandleNotFound(handle=HANDLE, reason=pb.HandleNotFound.EXPIRED, owner_epoch=b"o",
                                    server_name="s", server_epoch=b"e"), None,
     blockd.HandleNotFound, LookupError,
     {"reason": "EXPIRED", "handle": HANDLE, "owner_epoch": b"o", "server_name": "s",
      "server_epoch": b"e"}),
    (C.FAILED_PRECONDITION, None, None, blockd.FailedPrecondition, blockd.BlockdError, {}),
    (C.RESOURCE_EXHAUSTED, pb.InsufficientMemory(asked_bytes=9, free_bytes=2, evictable_bytes=3,
                                                 total_bytes=5), retry_after(0.001),
     blockd.InsufficientMemory, MemoryError,
     {"asked_bytes": 9, "free_bytes": 2, "evictable_bytes": 3, "total_bytes": 5,
      "retry_after": 0.001}),
    (C.RESOURCE_EXHAUSTED, pb.LimitExceeded(limit="l", asked_bytes=2, limit_bytes=1), None,
     blockd.LimitExceeded, blockd.ResourceExhausted,
     {"limit": "l", "asked_bytes": 2, "limit_bytes": 1, "retry_after": None}),
    (C.RESOURCE_EXHAUSTED, pb.QuotaExceeded(quota="q", limit=1, used=2, asked=3, tenant="t"),
     None, blockd.QuotaExceeded, blockd.ResourceExhausted,
     {"quota": "q", "limit": 1.0, "used": 2.0, "asked": 3.0, "tenant": "t"}),
    (C.UNAVAILABLE, pb.ServerDraining(server_name="s"), retry_after(0.001), blockd.ServerDraining,
     ConnectionError, {"server_name": "s", "retry_after": 0.001}),
    (C.UNAVAILABLE, None, None, blockd.Unavailable, ConnectionError, {"retry_after": None}),
    (C.DEADLINE_EXCEEDED, None, None, blockd.DeadlineExceeded, TimeoutError, {}),
    (C.DEADLINE_EXCEEDED, pb.DeadlineUnreachable(predicted=Duration(seconds=2), left=Duration(seconds=1)),
     None, blockd.DeadlineUnreachable, TimeoutError, {"predicted": 2.0, "left": 1.0}),
    (C.UNAUTHENTICATED, None, None, blockd.Unauthenticated, PermissionError, {}),
    (C.PERMISSION_DENIED, None, None, blockd.PermissionDenied, PermissionError, {}),
    (C.INTERNAL, None, None, blockd.InternalError, blockd.BlockdError, {}),
    (C.UNIMPLEMENTED, None, None, blockd.BlockdError, Exception, {}),
    # gRPC of a server, or a router, that ends a call which nobody has cancelled.
    (C.CANCELLED, None, None, blockd.Unavailable, ConnectionError, {}),
]


@pytest.mark.parametrize("code, detail, retry, kind, base, fields", CASES)
def test_a_status_becomes_its_exception(code: Any, detail: Any, retry: Any, kind: Any, base: Any,
                                        fields: Any) -> None:
    details = [one for one in (detail, retry) if one is not None]

    def fail(*_: Any) -> Any:
        raise Failure(code, "what is wrong", *details)

    with FakeServer(fail) as fake:
        with blockd.connect(fake.target, retry=blockd.Retry(max_attempts=1)) as client:
            with pytest.raises(kind, match="what is wrong") as caught:
                client.info()
    error = caught.value
    assert type(error) is kind and isinstance(error, (base, blockd.BlockdError))
    assert code is C.CANCELLED or (error.code is code and list(error.details) == details)
    for copy in (error, pickle.loads(pickle.dumps(error))):
        assert type(copy) is kind and str(copy) == str(error)
        for name, value in fields.items():
            assert getattr(copy, name) == value


def test_details_that_are_no_messages_are_left_out() -> None:
    def fail(*_: Any) -> Any:
        failure = Failure(C.NOT_FOUND, "gone", pb.HandleNotFound())
        failure.status.details[0].value = b"\xff\xff"
        failure.status.details.add(type_url="type.googleapis.com/other.Thing", value=b"")
        raise failure

    with FakeServer(fail) as fake, blockd.connect(fake.target) as client:
        with pytest.raises(blockd.HandleNotFound) as caught:
            client.info()
    assert caught.value.details == () and caught.value.reason == ""


def test_not_positive_definite_says_where(client: blockd.Client, chunky: blockd.Client) -> None:
    D, E = system(5, 3)
    D[3, 1, 1] = -100
    for one in (client, chunky):
        with pytest.raises(blockd.NotPositiveDefinite) as caught:
            one.factor(D, E)
        wrong = caught.value
        assert (wrong.system, wrong.block, wrong.row, wrong.minor) == (0, 3, 1, 11)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(client: blockd.Client, chunky: blockd.Client,
                                                      value: float) -> None:
    D, E = system(5, 3)
    for one in (client, chunky):
        E[2, 1, 0] = value
        with pytest.raises(blockd.InvalidArgument) as caught:
            one.factor(D, E)
        assert "coupling" in caught.value.field
        E[2, 1, 0] = 0
        b = np.ones((15, 2))
        b[4, 1] = value
        with one.factor(D, E) as A:
            with pytest.raises(blockd.InvalidArgument) as caught:
                A.solve(b)
            assert "rhs" in caught.value.field
            x = A.solve(b, check_finite=False)
            assert not np.isfinite(x[:, 1]).all() and np.isfinite(x[:, 0]).all()


def test_memory_says_how_much(client: blockd.Client) -> None:
    N, n = 2, 8192  # 1.5 GiB of zeros, of which nothing is ever touched
    with pytest.raises(blockd.InsufficientMemory) as caught:
        client.factor(np.broadcast_to(0.0, (N, n, n)), np.broadcast_to(0.0, (N - 1, n, n)))
    assert caught.value.asked_bytes > caught.value.total_bytes > 0
    assert caught.value.retry_after is None
