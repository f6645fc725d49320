"""What a caller asks for is what the server is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

import blockd
import blockd.aio
from blockd.v1 import blockd_pb2 as pb
from support.fake_server import FakeServer, echo
from support.problems import system

D, E = system(3, 2)
FACTOR: "list[tuple[dict[str, Any], dict[str, Any]]]" = [
    ({}, {}), ({"check_finite": False}, {"check_finite": False}),
    ({"keep_matrix": True}, {"keep_matrix": True}), ({"pin": True}, {"pin": True}),
    ({"logdet": True}, {"log_determinant": True}),
    ({"condition_estimate": True}, {"condition_estimate": True}),
    ({"accuracy": "guaranteed"}, {"accuracy": pb.ACCURACY_GUARANTEED}),
    ({"priority": "bulk"}, {"priority": pb.BULK}), ({"priority": "realtime"}, {"priority": pb.REALTIME}),
    ({"lease": 1.5}, {"lease": Duration(seconds=1, nanos=500_000_000)})]


@pytest.mark.parametrize("asked, expected", FACTOR)
@pytest.mark.parametrize("refactor", [False, True])
def test_of_a_factor(asked: Any, expected: Any, refactor: bool) -> None:
    with FakeServer(echo) as fake, blockd.connect(fake.target) as client:
        A = client.factor(D, E, **asked)
        if refactor:
            A.refactor(D, E, overwrite=True, **asked)
        request = pb.FactorRequest.FromString([one for name, one, _ in fake.calls if name == "Factor"][-1])
    options = request.options
    if refactor:
        assert list(options.handle) == list(A.ids) and options.overwrite
    else:
        assert len(options.idempotency_key) == 16
    options.ClearField("idempotency_key")
    options.ClearField("handle")
    options.ClearField("overwrite")
    defaults: dict[str, Any] = {"check_finite": True, "accuracy": pb.ACCURACY_STANDARD, "priority": pb.INTERACTIVE}
    assert options == pb.FactorOptions(**{**defaults, **expected})


@pytest.mark.parametrize("asked, expected", [
    ({}, {}), ({"residual": True}, {"residual": True}), ({"check_finite": False}, {"check_finite": False}),
    ({"max_refinements": 10}, {"max_refinements": 10}), ({"priority": "realtime"}, {"priority": pb.REALTIME})])
def test_of_a_solve(asked: Any, expected: Any) -> None:
    with FakeServer(echo) as fake, blockd.connect(fake.target) as client:
        client.factor(D, E).solve(np.ones(6), **asked)
        request = pb.SolveRequest.FromString([one for name, one, _ in fake.calls if name == "Solve"][0])
    defaults: dict[str, Any] = {"check_finite": True, "priority": pb.INTERACTIVE}
    assert request.options == pb.SolveOptions(**{**defaults, **expected})


@pytest.mark.parametrize("asked", [{"max_refinements": 11}, {"max_refinements": -1}, {"priority": "first"},
                                   {"timeout": 0.0}])
def test_wrong_ones_of_a_solve_are_refused(client: blockd.Client, asked: Any) -> None:
    with client.factor(D, E) as A:
        for call in (A.solve, A.solve_with_info):
            with pytest.raises(blockd.InvalidArgument) as caught:
                call(np.ones(6), **asked)
            assert caught.value.field == next(iter(asked))


@pytest.mark.parametrize("asked", [{"timeout": 0.0}, {"chunk_bytes": 0}, {"retry": blockd.Retry(max_attempts=0)}])
def test_wrong_ones_of_a_connection_are_refused(asked: Any) -> None:
    with pytest.raises(blockd.InvalidArgument):
        blockd.connect(**asked)


@pytest.mark.parametrize("priority", ["interactive", "bulk", "realtime"])
def test_every_priority_is_served(client: blockd.Client, priority: str) -> None:
    with client.factor(D, E, priority=priority, accuracy="guaranteed") as A, client.session() as session:
        x = A.solve(np.ones(6), priority=priority)
        y = session.send(A, np.ones(6), priority=priority, timeout=60.0).result()
        np.testing.assert_allclose(y, x, rtol=0, atol=1e-14)


def test_a_client_that_is_not_made_by_connect_names_it() -> None:
    for client in (blockd.Client, blockd.aio.AsyncClient):
        with pytest.raises(TypeError, match=r"blockd\.connect\(target\)"):
            client("localhost:7117")  # type: ignore[arg-type]
