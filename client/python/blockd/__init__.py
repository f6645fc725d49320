"""Solves symmetric positive definite block-tridiagonal systems on a blockd server.

    import blockd
    with blockd.connect("127.0.0.1:7117") as client, client.factor(D, E) as A:
        x = A.solve(b)

D (N, n, n) has the diagonal blocks A(i, i), E (N-1, n, n) the couplings E[i] = A(i+1, i), and b is
(N n,), (N n, d), (N, n) or (N, n, d). A may have dense rows at its end: `border` and `corner` of
`Client.factor`. `blockd.aio` has the same with coroutines.
"""

from blockd import aio
from blockd._options import Retry, Tls
from blockd.client import Client, Handle, connect
from blockd.errors import (BlockdError, Cancelled, ConfigurationError, DeadlineExceeded,
                           DeadlineUnreachable, FailedPrecondition, HandleNotFound, InsufficientMemory, InternalError,
                           InvalidArgument, LimitExceeded, NotPositiveDefinite, NotSmoothable, PermissionDenied,
                           QuotaExceeded, ResourceExhausted, ServerDraining, SingularCovariance,
                           Unauthenticated, Unavailable)
from blockd.local import LocalServer, local_server
from blockd.results import (Arrowhead, Cost, FactorizationInfo, Plan, PlanLevel, ServerInfo,
                            Smoothed, SmoothErrors, Solution, Tridiagonal)
from blockd.session import PendingSolve, Session
from blockd.sparse import from_scipy_sparse
from blockd.state_space import StateSpaceModel, from_statsmodels

__version__ = "0.1.0"

__all__ = [
    "Arrowhead", "BlockdError", "Cancelled", "Client", "ConfigurationError", "Cost",
    "DeadlineExceeded", "DeadlineUnreachable", "FactorizationInfo", "FailedPrecondition", "Handle", "HandleNotFound",
    "InsufficientMemory", "InternalError", "InvalidArgument", "LimitExceeded", "LocalServer", "NotPositiveDefinite",
    "NotSmoothable", "PendingSolve", "PermissionDenied", "Plan", "PlanLevel", "QuotaExceeded", "ResourceExhausted",
    "Retry", "ServerDraining", "ServerInfo", "Session", "SingularCovariance", "SmoothErrors", "Smoothed", "Solution",
    "StateSpaceModel", "Tls", "Tridiagonal", "Unauthenticated", "Unavailable", "aio", "connect", "from_scipy_sparse",
    "from_statsmodels", "local_server",
]
