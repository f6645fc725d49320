from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ACCURACY_GUARANTEED: Accuracy
ACCURACY_STANDARD: Accuracy
ACCURACY_UNSPECIFIED: Accuracy
BULK: PriorityClass
CONSTANT: ModelArray
COUPLING_FORM_UNSPECIFIED: CouplingForm
COVARIANCES: SmoothedCovariances
DESCRIPTOR: _descriptor.FileDescriptor
DIAGONAL: InverseParts
DIAGONAL_BLOCKS: InverseParts
DIAGONAL_FORM_UNSPECIFIED: DiagonalForm
FILTERED_COVARIANCES: SmoothOutput
FILTERED_MEANS: SmoothOutput
FLOAT32: ScalarType
FLOAT64: ScalarType
FULL: DiagonalForm
INFORMATION: SmoothForm
INNOVATIONS: SmoothOutput
INTERACTIVE: PriorityClass
INVERSE_PARTS_UNSPECIFIED: InverseParts
LOG_LIKELIHOOD_STEPS: SmoothOutput
MODEL_ARRAY_UNSPECIFIED: ModelArray
OBSERVATION_COVARIANCES: SmoothOutput
OBSERVATION_DISTURBANCES: SmoothOutput
OBSERVATION_MEANS: SmoothOutput
ORTHOGONAL: SmoothForm
ORTHOGONAL_IN_DOUBLE_DOUBLE: SmoothForm
PACKED_LOWER: DiagonalForm
PER_STEP: ModelArray
PREDICTED_COVARIANCES: SmoothOutput
PREDICTED_MEANS: SmoothOutput
PRIORITY_CLASS_UNSPECIFIED: PriorityClass
REALTIME: PriorityClass
SCALAR_TYPE_UNSPECIFIED: ScalarType
SCORE_INITIAL_COVARIANCE: SmoothOutput
SCORE_INITIAL_MEAN: SmoothOutput
SCORE_OBSERVATION: SmoothOutput
SCORE_OBSERVATION_COVARIANCE: SmoothOutput
SCORE_OBSERVATION_OFFSET: SmoothOutput
SCORE_TRANSITION: SmoothOutput
SCORE_TRANSITION_COVARIANCE: SmoothOutput
SCORE_TRANSITION_OFFSET: SmoothOutput
SMOOTHED_COVARIANCES_UNSPECIFIED: SmoothedCovariances
SMOOTH_FORM_UNSPECIFIED: SmoothForm
SMOOTH_OUTPUT_UNSPECIFIED: SmoothOutput
STANDARDIZED_OBSERVATION_DISTURBANCES: SmoothOutput
STANDARDIZED_STATE_DISTURBANCES: SmoothOutput
STATE_DISTURBANCES: SmoothOutput
SUBDIAGONAL: CouplingForm
SUPERDIAGONAL: CouplingForm
TRIDIAGONAL_BLOCKS: InverseParts
VARIANCES: SmoothedCovariances

class Cancel(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Cost(_message.Message):
    __slots__ = ["batch_items", "batch_requests", "compute_seconds", "download_seconds", "queue_seconds", "upload_seconds"]
    BATCH_ITEMS_FIELD_NUMBER: _ClassVar[int]
    BATCH_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    batch_items: int
    batch_requests: int
    compute_seconds: float
    download_seconds: float
    queue_seconds: float
    upload_seconds: float
    def __init__(self, queue_seconds: _Optional[float] = ..., batch_requests: _Optional[int] = ..., batch_items: _Optional[int] = ..., upload_seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., download_seconds: _Optional[float] = ...) -> None: ...

class DeadlineUnreachable(_message.Message):
    __slots__ = ["left", "predicted"]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    left: _duration_pb2.Duration
    predicted: _duration_pb2.Duration
    def __init__(self, predicted: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., left: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ["backend", "backlog_seconds", "factorizations", "failure", "memory_bytes", "memory_evictable_bytes", "memory_free_bytes", "name", "parallelism", "state"]
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FACTORIZATIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED: Device.State
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    IN_SERVICE: Device.State
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_UNSPECIFIED: Device.State
    backend: str
    backlog_seconds: float
    factorizations: int
    failure: str
    memory_bytes: int
    memory_evictable_bytes: int
    memory_free_bytes: int
    name: str
    parallelism: int
    state: Device.State
    def __init__(self, backend: _Optional[str] = ..., name: _Optional[str] = ..., parallelism: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ..., memory_evictable_bytes: _Optional[int] = ..., factorizations: _Optional[int] = ..., state: _Optional[_Union[Device.State, str]] = ..., failure: _Optional[str] = ..., backlog_seconds: _Optional[float] = ...) -> None: ...

class FactorOptions(_message.Message):
    __slots__ = ["accuracy", "check_finite", "condition_estimate", "handle", "idempotency_key", "keep_matrix", "lease", "log_determinant", "overwrite", "pin", "priority"]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    CHECK_FINITE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    KEEP_MATRIX_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LOG_DETERMINANT_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    accuracy: Accuracy
    check_finite: bool
    condition_estimate: bool
    handle: _containers.RepeatedScalarFieldContainer[bytes]
    idempotency_key: bytes
    keep_matrix: bool
    lease: _duration_pb2.Duration
    log_determinant: bool
    overwrite: bool
    pin: bool
    priority: PriorityClass
    def __init__(self, handle: _Optional[_Iterable[bytes]] = ..., overwrite: bool = ..., idempotency_key: _Optional[bytes] = ..., keep_matrix: bool = ..., check_finite: bool = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., pin: bool = ..., log_determinant: bool = ..., accuracy: _Optional[_Union[Accuracy, str]] = ..., condition_estimate: bool = ..., priority: _Optional[_Union[PriorityClass, str]] = ...) -> None: ...

class FactorReply(_message.Message):
    __slots__ = ["cost", "factor_bytes", "found", "system"]
    COST_FIELD_NUMBER: _ClassVar[int]
    FACTOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    cost: Cost
    factor_bytes: int
    found: bool
    system: _containers.RepeatedCompositeFieldContainer[FactoredSystem]
    def __init__(self, system: _Optional[_Iterable[_Union[FactoredSystem, _Mapping]]] = ..., factor_bytes: _Optional[int] = ..., found: bool = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class FactorRequest(_message.Message):
    __slots__ = ["options", "spec", "system"]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    options: FactorOptions
    spec: SystemSpec
    system: _containers.RepeatedCompositeFieldContainer[SystemData]
    def __init__(self, spec: _Optional[_Union[SystemSpec, _Mapping]] = ..., system: _Optional[_Iterable[_Union[SystemData, _Mapping]]] = ..., options: _Optional[_Union[FactorOptions, _Mapping]] = ...) -> None: ...

class FactorSolveManyRequest(_message.Message):
    __slots__ = ["accuracy", "check_finite", "handle", "keep_matrix", "matrix", "num_rhs", "options", "overwrite", "rhs", "spec"]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    CHECK_FINITE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEEP_MATRIX_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    NUM_RHS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    accuracy: Accuracy
    check_finite: bool
    handle: _containers.RepeatedScalarFieldContainer[bytes]
    keep_matrix: bool
    matrix: bytes
    num_rhs: int
    options: SolveOptions
    overwrite: bool
    rhs: bytes
    spec: SystemSpec
    def __init__(self, spec: _Optional[_Union[SystemSpec, _Mapping]] = ..., handle: _Optional[_Iterable[bytes]] = ..., matrix: _Optional[bytes] = ..., rhs: _Optional[bytes] = ..., num_rhs: _Optional[int] = ..., options: _Optional[_Union[SolveOptions, _Mapping]] = ..., check_finite: bool = ..., accuracy: _Optional[_Union[Accuracy, str]] = ..., overwrite: bool = ..., keep_matrix: bool = ...) -> None: ...

class FactorSolveReply(_message.Message):
    __slots__ = ["backward_error", "backward_error_bound", "cost", "growth", "log_determinant", "matrix_kept", "refinements", "solution"]
    BACKWARD_ERROR_BOUND_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    LOG_DETERMINANT_FIELD_NUMBER: _ClassVar[int]
    MATRIX_KEPT_FIELD_NUMBER: _ClassVar[int]
    REFINEMENTS_FIELD_NUMBER: _ClassVar[int]
    SOLUTION_FIELD_NUMBER: _ClassVar[int]
    backward_error: float
    backward_error_bound: float
    cost: Cost
    growth: float
    log_determinant: float
    matrix_kept: bool
    refinements: int
    solution: bytes
    def __init__(self, solution: _Optional[bytes] = ..., backward_error: _Optional[float] = ..., refinements: _Optional[int] = ..., backward_error_bound: _Optional[float] = ..., growth: _Optional[float] = ..., log_determinant: _Optional[float] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., matrix_kept: bool = ...) -> None: ...

class FactorSolveRequest(_message.Message):
    __slots__ = ["accuracy", "check_finite", "handle", "keep_matrix", "log_determinant", "num_rhs", "options", "overwrite", "rhs", "spec", "system"]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    CHECK_FINITE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    KEEP_MATRIX_FIELD_NUMBER: _ClassVar[int]
    LOG_DETERMINANT_FIELD_NUMBER: _ClassVar[int]
    NUM_RHS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    accuracy: Accuracy
    check_finite: bool
    handle: bytes
    keep_matrix: bool
    log_determinant: bool
    num_rhs: int
    options: SolveOptions
    overwrite: bool
    rhs: bytes
    spec: SystemSpec
    system: SystemData
    def __init__(self, spec: _Optional[_Union[SystemSpec, _Mapping]] = ..., system: _Optional[_Union[SystemData, _Mapping]] = ..., num_rhs: _Optional[int] = ..., rhs: _Optional[bytes] = ..., options: _Optional[_Union[SolveOptions, _Mapping]] = ..., check_finite: bool = ..., log_determinant: bool = ..., accuracy: _Optional[_Union[Accuracy, str]] = ..., handle: _Optional[bytes] = ..., overwrite: bool = ..., keep_matrix: bool = ...) -> None: ...

class FactorStreamHeader(_message.Message):
    __slots__ = ["num_systems", "options", "spec", "upload_id"]
    NUM_SYSTEMS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    num_systems: int
    options: FactorOptions
    spec: SystemSpec
    upload_id: bytes
    def __init__(self, spec: _Optional[_Union[SystemSpec, _Mapping]] = ..., num_systems: _Optional[int] = ..., options: _Optional[_Union[FactorOptions, _Mapping]] = ..., upload_id: _Optional[bytes] = ...) -> None: ...

class FactorStreamRequest(_message.Message):
    __slots__ = ["chunk", "header", "join"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    header: FactorStreamHeader
    join: UploadJoin
    def __init__(self, header: _Optional[_Union[FactorStreamHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., join: _Optional[_Union[UploadJoin, _Mapping]] = ...) -> None: ...

class FactoredSystem(_message.Message):
    __slots__ = ["backward_error_bound", "condition_estimate", "growth", "handle", "log_determinant", "matrix_kept", "status"]
    BACKWARD_ERROR_BOUND_FIELD_NUMBER: _ClassVar[int]
    CONDITION_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LOG_DETERMINANT_FIELD_NUMBER: _ClassVar[int]
    MATRIX_KEPT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    backward_error_bound: float
    condition_estimate: float
    growth: float
    handle: bytes
    log_determinant: float
    matrix_kept: bool
    status: RpcStatus
    def __init__(self, handle: _Optional[bytes] = ..., status: _Optional[_Union[RpcStatus, _Mapping]] = ..., growth: _Optional[float] = ..., condition_estimate: _Optional[float] = ..., backward_error_bound: _Optional[float] = ..., matrix_kept: bool = ..., log_determinant: _Optional[float] = ...) -> None: ...

class FactorizationInfo(_message.Message):
    __slots__ = ["age_seconds", "arrow_size", "backward_error_bound", "block_size", "condition_estimate", "device", "growth", "handle", "held_bytes", "idempotency_key", "idle_seconds", "lease_seconds", "matrix_kept", "num_blocks", "pinned", "rhs_solved", "scalar", "times_refactored", "times_solved"]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ARROW_SIZE_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_ERROR_BOUND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MATRIX_KEPT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    RHS_SOLVED_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    TIMES_REFACTORED_FIELD_NUMBER: _ClassVar[int]
    TIMES_SOLVED_FIELD_NUMBER: _ClassVar[int]
    age_seconds: float
    arrow_size: int
    backward_error_bound: float
    block_size: int
    condition_estimate: float
    device: int
    growth: float
    handle: bytes
    held_bytes: int
    idempotency_key: bytes
    idle_seconds: float
    lease_seconds: float
    matrix_kept: bool
    num_blocks: int
    pinned: bool
    rhs_solved: int
    scalar: ScalarType
    times_refactored: int
    times_solved: int
    def __init__(self, handle: _Optional[bytes] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., scalar: _Optional[_Union[ScalarType, str]] = ..., held_bytes: _Optional[int] = ..., matrix_kept: bool = ..., pinned: bool = ..., age_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., times_solved: _Optional[int] = ..., rhs_solved: _Optional[int] = ..., times_refactored: _Optional[int] = ..., idempotency_key: _Optional[bytes] = ..., growth: _Optional[float] = ..., condition_estimate: _Optional[float] = ..., backward_error_bound: _Optional[float] = ..., device: _Optional[int] = ..., arrow_size: _Optional[int] = ...) -> None: ...

class GetFactorizationRequest(_message.Message):
    __slots__ = ["handle"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: bytes
    def __init__(self, handle: _Optional[bytes] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ["num_rhs", "num_systems", "spec"]
    NUM_RHS_FIELD_NUMBER: _ClassVar[int]
    NUM_SYSTEMS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    num_rhs: int
    num_systems: int
    spec: SystemSpec
    def __init__(self, spec: _Optional[_Union[SystemSpec, _Mapping]] = ..., num_systems: _Optional[int] = ..., num_rhs: _Optional[int] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class HandleNotFound(_message.Message):
    __slots__ = ["handle", "owner_epoch", "reason", "server_epoch", "server_name"]
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    DEVICE_FAILED: HandleNotFound.Reason
    EVICTED: HandleNotFound.Reason
    EXPIRED: HandleNotFound.Reason
    FAILED_REFACTOR: HandleNotFound.Reason
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NEVER_EXISTED: HandleNotFound.Reason
    OTHER_SERVER: HandleNotFound.Reason
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_UNSPECIFIED: HandleNotFound.Reason
    RELEASED: HandleNotFound.Reason
    RESTARTED: HandleNotFound.Reason
    SERVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    handle: bytes
    owner_epoch: bytes
    reason: HandleNotFound.Reason
    server_epoch: bytes
    server_name: str
    def __init__(self, handle: _Optional[bytes] = ..., reason: _Optional[_Union[HandleNotFound.Reason, str]] = ..., owner_epoch: _Optional[bytes] = ..., server_name: _Optional[str] = ..., server_epoch: _Optional[bytes] = ...) -> None: ...

class InsufficientMemory(_message.Message):
    __slots__ = ["asked_bytes", "evictable_bytes", "free_bytes", "total_bytes"]
    ASKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    asked_bytes: int
    evictable_bytes: int
    free_bytes: int
    total_bytes: int
    def __init__(self, asked_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., evictable_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class InvalidField(_message.Message):
    __slots__ = ["came", "expected", "field"]
    CAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    came: str
    expected: str
    field: str
    def __init__(self, field: _Optional[str] = ..., came: _Optional[str] = ..., expected: _Optional[str] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ["help", "name", "value"]
    HELP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    help: str
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., help: _Optional[str] = ...) -> None: ...

class LimitExceeded(_message.Message):
    __slots__ = ["asked_bytes", "limit", "limit_bytes"]
    ASKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    asked_bytes: int
    limit: str
    limit_bytes: int
    def __init__(self, limit: _Optional[str] = ..., asked_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class ListFactorizationsReply(_message.Message):
    __slots__ = ["factorization", "next_page_token"]
    FACTORIZATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    factorization: _containers.RepeatedCompositeFieldContainer[FactorizationInfo]
    next_page_token: bytes
    def __init__(self, factorization: _Optional[_Iterable[_Union[FactorizationInfo, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class ListFactorizationsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: bytes
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class NotPositiveDefinite(_message.Message):
    __slots__ = ["block", "elimination_order", "minor", "row", "system"]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ELIMINATION_ORDER_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    block: int
    elimination_order: bool
    minor: int
    row: int
    system: int
    def __init__(self, system: _Optional[int] = ..., block: _Optional[int] = ..., row: _Optional[int] = ..., minor: _Optional[int] = ..., elimination_order: bool = ...) -> None: ...

class NotSmoothable(_message.Message):
    __slots__ = ["directions", "form", "log_likelihood_error", "means_error", "reason", "row", "step", "system", "variances_error"]
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CONTRADICTION: NotSmoothable.Reason
    DIRECTIONS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    INACCURATE: NotSmoothable.Reason
    LOG_LIKELIHOOD_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEANS_ERROR_FIELD_NUMBER: _ClassVar[int]
    NOT_IDENTIFIED: NotSmoothable.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_UNSPECIFIED: NotSmoothable.Reason
    ROW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    VARIANCES_ERROR_FIELD_NUMBER: _ClassVar[int]
    directions: int
    form: SmoothForm
    log_likelihood_error: float
    means_error: float
    reason: NotSmoothable.Reason
    row: int
    step: int
    system: int
    variances_error: float
    def __init__(self, reason: _Optional[_Union[NotSmoothable.Reason, str]] = ..., form: _Optional[_Union[SmoothForm, str]] = ..., system: _Optional[int] = ..., step: _Optional[int] = ..., row: _Optional[int] = ..., directions: _Optional[int] = ..., means_error: _Optional[float] = ..., variances_error: _Optional[float] = ..., log_likelihood_error: _Optional[float] = ...) -> None: ...

class Palette(_message.Message):
    __slots__ = ["coupling_index", "diagonal_index", "num_coupling", "num_diagonal"]
    COUPLING_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIAGONAL_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_COUPLING_FIELD_NUMBER: _ClassVar[int]
    NUM_DIAGONAL_FIELD_NUMBER: _ClassVar[int]
    coupling_index: _containers.RepeatedScalarFieldContainer[int]
    diagonal_index: _containers.RepeatedScalarFieldContainer[int]
    num_coupling: int
    num_diagonal: int
    def __init__(self, num_diagonal: _Optional[int] = ..., num_coupling: _Optional[int] = ..., diagonal_index: _Optional[_Iterable[int]] = ..., coupling_index: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ["backend", "device_name", "factor_bytes", "factor_flops", "factor_workspace_bytes", "level", "predicted_factor_seconds", "predicted_solve_seconds", "solve_flops", "solve_workspace_bytes"]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    FACTOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FLOPS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FACTOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SOLVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SOLVE_FLOPS_FIELD_NUMBER: _ClassVar[int]
    SOLVE_WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    backend: str
    device_name: str
    factor_bytes: int
    factor_flops: float
    factor_workspace_bytes: int
    level: _containers.RepeatedCompositeFieldContainer[PlanLevel]
    predicted_factor_seconds: float
    predicted_solve_seconds: float
    solve_flops: float
    solve_workspace_bytes: int
    def __init__(self, backend: _Optional[str] = ..., device_name: _Optional[str] = ..., level: _Optional[_Iterable[_Union[PlanLevel, _Mapping]]] = ..., factor_bytes: _Optional[int] = ..., factor_workspace_bytes: _Optional[int] = ..., solve_workspace_bytes: _Optional[int] = ..., factor_flops: _Optional[float] = ..., solve_flops: _Optional[float] = ..., predicted_factor_seconds: _Optional[float] = ..., predicted_solve_seconds: _Optional[float] = ...) -> None: ...

class PlanLevel(_message.Message):
    __slots__ = ["chain_blocks", "fill_blocks", "interior_blocks", "longest_segment_blocks", "segments", "separator_blocks"]
    CHAIN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FILL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INTERIOR_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SEGMENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEPARATOR_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    chain_blocks: int
    fill_blocks: int
    interior_blocks: int
    longest_segment_blocks: int
    segments: int
    separator_blocks: int
    def __init__(self, chain_blocks: _Optional[int] = ..., segments: _Optional[int] = ..., longest_segment_blocks: _Optional[int] = ..., interior_blocks: _Optional[int] = ..., fill_blocks: _Optional[int] = ..., separator_blocks: _Optional[int] = ...) -> None: ...

class QuotaExceeded(_message.Message):
    __slots__ = ["asked", "limit", "quota", "tenant", "used"]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    asked: float
    limit: float
    quota: str
    tenant: str
    used: float
    def __init__(self, quota: _Optional[str] = ..., limit: _Optional[float] = ..., used: _Optional[float] = ..., asked: _Optional[float] = ..., tenant: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ["released_bytes"]
    RELEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    released_bytes: int
    def __init__(self, released_bytes: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ["handle"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, handle: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RetryAfter(_message.Message):
    __slots__ = ["delay"]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    delay: _duration_pb2.Duration
    def __init__(self, delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RpcStatus(_message.Message):
    __slots__ = ["code", "details", "message"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class SampleHead(_message.Message):
    __slots__ = ["cost", "num_rows", "num_samples", "samples_bytes", "scalar"]
    COST_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    cost: Cost
    num_rows: int
    num_samples: int
    samples_bytes: int
    scalar: ScalarType
    def __init__(self, num_samples: _Optional[int] = ..., num_rows: _Optional[int] = ..., scalar: _Optional[_Union[ScalarType, str]] = ..., samples_bytes: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class SampleReply(_message.Message):
    __slots__ = ["chunk", "head"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    head: SampleHead
    def __init__(self, head: _Optional[_Union[SampleHead, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ["first_sample", "handle", "num_samples", "priority", "seed"]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    first_sample: int
    handle: bytes
    num_samples: int
    priority: PriorityClass
    seed: int
    def __init__(self, handle: _Optional[bytes] = ..., seed: _Optional[int] = ..., first_sample: _Optional[int] = ..., num_samples: _Optional[int] = ..., priority: _Optional[_Union[PriorityClass, str]] = ...) -> None: ...

class SelectedInverseHead(_message.Message):
    __slots__ = ["block_size", "border_bytes", "corner_bytes", "cost", "coupling_bytes", "diagonal_bytes", "num_blocks", "scalar"]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BORDER_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORNER_BYTES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COUPLING_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIAGONAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    border_bytes: int
    corner_bytes: int
    cost: Cost
    coupling_bytes: int
    diagonal_bytes: int
    num_blocks: int
    scalar: ScalarType
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., scalar: _Optional[_Union[ScalarType, str]] = ..., diagonal_bytes: _Optional[int] = ..., coupling_bytes: _Optional[int] = ..., border_bytes: _Optional[int] = ..., corner_bytes: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class SelectedInverseReply(_message.Message):
    __slots__ = ["chunk", "head"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    head: SelectedInverseHead
    def __init__(self, head: _Optional[_Union[SelectedInverseHead, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SelectedInverseRequest(_message.Message):
    __slots__ = ["border", "first_block", "handle", "num_blocks", "parts", "priority"]
    BORDER_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    border: bool
    first_block: int
    handle: bytes
    num_blocks: int
    parts: InverseParts
    priority: PriorityClass
    def __init__(self, handle: _Optional[bytes] = ..., parts: _Optional[_Union[InverseParts, str]] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., priority: _Optional[_Union[PriorityClass, str]] = ..., border: bool = ...) -> None: ...

class ServerDraining(_message.Message):
    __slots__ = ["server_name"]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    server_name: str
    def __init__(self, server_name: _Optional[str] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ["backend", "built_backends", "device", "device_name", "device_parallelism", "factorizations", "health", "limit", "memory_bytes", "memory_evictable_bytes", "memory_free_bytes", "server_epoch", "server_name", "uptime_seconds", "version"]
    class Health(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BUILT_BACKENDS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED: ServerInfo.Health
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    FACTORIZATIONS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_UNSPECIFIED: ServerInfo.Health
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVING: ServerInfo.Health
    SERVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    SERVING: ServerInfo.Health
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    backend: str
    built_backends: _containers.RepeatedScalarFieldContainer[str]
    device: _containers.RepeatedCompositeFieldContainer[Device]
    device_name: str
    device_parallelism: int
    factorizations: int
    health: ServerInfo.Health
    limit: _containers.RepeatedCompositeFieldContainer[Limit]
    memory_bytes: int
    memory_evictable_bytes: int
    memory_free_bytes: int
    server_epoch: bytes
    server_name: str
    uptime_seconds: float
    version: str
    def __init__(self, version: _Optional[str] = ..., built_backends: _Optional[_Iterable[str]] = ..., backend: _Optional[str] = ..., device_name: _Optional[str] = ..., device_parallelism: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ..., memory_evictable_bytes: _Optional[int] = ..., factorizations: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., server_epoch: _Optional[bytes] = ..., limit: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ..., server_name: _Optional[str] = ..., device: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., health: _Optional[_Union[ServerInfo.Health, str]] = ...) -> None: ...

class SingularCovariance(_message.Message):
    __slots__ = ["matrix", "row", "step"]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    matrix: str
    row: int
    step: int
    def __init__(self, matrix: _Optional[str] = ..., step: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...

class SmoothHead(_message.Message):
    __slots__ = ["backward_error_bound", "cost", "covariances_bytes", "found", "growth", "handle", "lag_one_bytes", "log_likelihood", "means_bytes", "num_systems", "observed", "output_bytes", "residuals_bytes", "samples_bytes", "system", "system_of_series"]
    BACKWARD_ERROR_BOUND_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COVARIANCES_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LAG_ONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_LIKELIHOOD_FIELD_NUMBER: _ClassVar[int]
    MEANS_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_SYSTEMS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDUALS_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_OF_SERIES_FIELD_NUMBER: _ClassVar[int]
    backward_error_bound: float
    cost: Cost
    covariances_bytes: int
    found: bool
    growth: float
    handle: _containers.RepeatedScalarFieldContainer[bytes]
    lag_one_bytes: int
    log_likelihood: _containers.RepeatedScalarFieldContainer[float]
    means_bytes: int
    num_systems: int
    observed: _containers.RepeatedScalarFieldContainer[int]
    output_bytes: _containers.RepeatedScalarFieldContainer[int]
    residuals_bytes: int
    samples_bytes: int
    system: _containers.RepeatedCompositeFieldContainer[SmoothedSystem]
    system_of_series: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_systems: _Optional[int] = ..., system_of_series: _Optional[_Iterable[int]] = ..., handle: _Optional[_Iterable[bytes]] = ..., found: bool = ..., log_likelihood: _Optional[_Iterable[float]] = ..., observed: _Optional[_Iterable[int]] = ..., growth: _Optional[float] = ..., backward_error_bound: _Optional[float] = ..., means_bytes: _Optional[int] = ..., covariances_bytes: _Optional[int] = ..., lag_one_bytes: _Optional[int] = ..., residuals_bytes: _Optional[int] = ..., samples_bytes: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., system: _Optional[_Iterable[_Union[SmoothedSystem, _Mapping]]] = ..., output_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class SmoothHeader(_message.Message):
    __slots__ = ["diffuse", "diffuse_columns", "num_series", "num_steps", "observation", "observation_covariance", "observation_offset", "observation_size", "options", "state_size", "transition", "transition_covariance", "transition_offset"]
    DIFFUSE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DIFFUSE_FIELD_NUMBER: _ClassVar[int]
    NUM_SERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SIZE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRANSITION_COVARIANCE_FIELD_NUMBER: _ClassVar[int]
    TRANSITION_FIELD_NUMBER: _ClassVar[int]
    TRANSITION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    diffuse: bool
    diffuse_columns: int
    num_series: int
    num_steps: int
    observation: ModelArray
    observation_covariance: ModelArray
    observation_offset: ModelArray
    observation_size: int
    options: SmoothOptions
    state_size: int
    transition: ModelArray
    transition_covariance: ModelArray
    transition_offset: ModelArray
    def __init__(self, num_steps: _Optional[int] = ..., state_size: _Optional[int] = ..., observation_size: _Optional[int] = ..., num_series: _Optional[int] = ..., transition: _Optional[_Union[ModelArray, str]] = ..., transition_covariance: _Optional[_Union[ModelArray, str]] = ..., observation: _Optional[_Union[ModelArray, str]] = ..., observation_covariance: _Optional[_Union[ModelArray, str]] = ..., transition_offset: _Optional[_Union[ModelArray, str]] = ..., observation_offset: _Optional[_Union[ModelArray, str]] = ..., diffuse: bool = ..., options: _Optional[_Union[SmoothOptions, _Mapping]] = ..., diffuse_columns: _Optional[int] = ...) -> None: ...

class SmoothOptions(_message.Message):
    __slots__ = ["covariances", "form", "keep", "lag_one_covariances", "lease", "log_likelihood", "num_samples", "output", "priority", "residuals", "seed"]
    COVARIANCES_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    LAG_ONE_COVARIANCES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LOG_LIKELIHOOD_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    covariances: SmoothedCovariances
    form: SmoothForm
    keep: bool
    lag_one_covariances: bool
    lease: _duration_pb2.Duration
    log_likelihood: bool
    num_samples: int
    output: _containers.RepeatedScalarFieldContainer[SmoothOutput]
    priority: PriorityClass
    residuals: bool
    seed: int
    def __init__(self, covariances: _Optional[_Union[SmoothedCovariances, str]] = ..., lag_one_covariances: bool = ..., log_likelihood: bool = ..., residuals: bool = ..., num_samples: _Optional[int] = ..., seed: _Optional[int] = ..., keep: bool = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., priority: _Optional[_Union[PriorityClass, str]] = ..., form: _Optional[_Union[SmoothForm, str]] = ..., output: _Optional[_Iterable[_Union[SmoothOutput, str]]] = ...) -> None: ...

class SmoothReply(_message.Message):
    __slots__ = ["chunk", "head"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    head: SmoothHead
    def __init__(self, head: _Optional[_Union[SmoothHead, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SmoothRequest(_message.Message):
    __slots__ = ["chunk", "header"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    header: SmoothHeader
    def __init__(self, header: _Optional[_Union[SmoothHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SmoothedSystem(_message.Message):
    __slots__ = ["form", "log_likelihood_error", "means_error", "reason", "variances_error"]
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ASKED_FOR: SmoothedSystem.Reason
    COVARIANCE_IS_SINGULAR: SmoothedSystem.Reason
    FORM_FIELD_NUMBER: _ClassVar[int]
    HAS_OUTPUTS: SmoothedSystem.Reason
    INFORMATION_FORM_INACCURATE: SmoothedSystem.Reason
    LOG_LIKELIHOOD_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEANS_ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTLY_DIFFUSE: SmoothedSystem.Reason
    PRECISION_IS_INDEFINITE: SmoothedSystem.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_UNSPECIFIED: SmoothedSystem.Reason
    VARIANCES_ERROR_FIELD_NUMBER: _ClassVar[int]
    form: SmoothForm
    log_likelihood_error: float
    means_error: float
    reason: SmoothedSystem.Reason
    variances_error: float
    def __init__(self, form: _Optional[_Union[SmoothForm, str]] = ..., reason: _Optional[_Union[SmoothedSystem.Reason, str]] = ..., means_error: _Optional[float] = ..., variances_error: _Optional[float] = ..., log_likelihood_error: _Optional[float] = ...) -> None: ...

class SolveFailure(_message.Message):
    __slots__ = ["solve", "status"]
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    solve: int
    status: RpcStatus
    def __init__(self, solve: _Optional[int] = ..., status: _Optional[_Union[RpcStatus, _Mapping]] = ...) -> None: ...

class SolveManyReply(_message.Message):
    __slots__ = ["backward_error", "backward_error_bound", "cost", "failure", "growth", "matrix_kept", "refinements", "solution"]
    BACKWARD_ERROR_BOUND_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    MATRIX_KEPT_FIELD_NUMBER: _ClassVar[int]
    REFINEMENTS_FIELD_NUMBER: _ClassVar[int]
    SOLUTION_FIELD_NUMBER: _ClassVar[int]
    backward_error: _containers.RepeatedScalarFieldContainer[float]
    backward_error_bound: _containers.RepeatedScalarFieldContainer[float]
    cost: Cost
    failure: _containers.RepeatedCompositeFieldContainer[SolveFailure]
    growth: _containers.RepeatedScalarFieldContainer[float]
    matrix_kept: _containers.RepeatedScalarFieldContainer[bool]
    refinements: _containers.RepeatedScalarFieldContainer[int]
    solution: bytes
    def __init__(self, solution: _Optional[bytes] = ..., failure: _Optional[_Iterable[_Union[SolveFailure, _Mapping]]] = ..., backward_error_bound: _Optional[_Iterable[float]] = ..., backward_error: _Optional[_Iterable[float]] = ..., refinements: _Optional[_Iterable[int]] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., growth: _Optional[_Iterable[float]] = ..., matrix_kept: _Optional[_Iterable[bool]] = ...) -> None: ...

class SolveManyRequest(_message.Message):
    __slots__ = ["handles", "num_rhs", "options", "rhs", "rhs_bytes"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NUM_RHS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RHS_BYTES_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    num_rhs: _containers.RepeatedScalarFieldContainer[int]
    options: SolveOptions
    rhs: bytes
    rhs_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[bytes] = ..., rhs: _Optional[bytes] = ..., num_rhs: _Optional[_Iterable[int]] = ..., rhs_bytes: _Optional[_Iterable[int]] = ..., options: _Optional[_Union[SolveOptions, _Mapping]] = ...) -> None: ...

class SolveOptions(_message.Message):
    __slots__ = ["check_finite", "max_refinements", "priority", "residual"]
    CHECK_FINITE_FIELD_NUMBER: _ClassVar[int]
    MAX_REFINEMENTS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    check_finite: bool
    max_refinements: int
    priority: PriorityClass
    residual: bool
    def __init__(self, residual: bool = ..., max_refinements: _Optional[int] = ..., check_finite: bool = ..., priority: _Optional[_Union[PriorityClass, str]] = ...) -> None: ...

class SolveReply(_message.Message):
    __slots__ = ["backward_error", "backward_error_bound", "cost", "refinements", "solution"]
    BACKWARD_ERROR_BOUND_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    REFINEMENTS_FIELD_NUMBER: _ClassVar[int]
    SOLUTION_FIELD_NUMBER: _ClassVar[int]
    backward_error: float
    backward_error_bound: float
    cost: Cost
    refinements: int
    solution: bytes
    def __init__(self, solution: _Optional[bytes] = ..., backward_error: _Optional[float] = ..., refinements: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., backward_error_bound: _Optional[float] = ...) -> None: ...

class SolveRequest(_message.Message):
    __slots__ = ["handle", "num_rhs", "options", "rhs"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_RHS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELD_NUMBER: _ClassVar[int]
    handle: bytes
    num_rhs: int
    options: SolveOptions
    rhs: bytes
    def __init__(self, handle: _Optional[bytes] = ..., num_rhs: _Optional[int] = ..., rhs: _Optional[bytes] = ..., options: _Optional[_Union[SolveOptions, _Mapping]] = ...) -> None: ...

class SolveStreamReply(_message.Message):
    __slots__ = ["chunk", "id", "many", "reply", "solution_bytes", "status"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MANY_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    SOLUTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    id: int
    many: SolveManyReply
    reply: SolveReply
    solution_bytes: int
    status: RpcStatus
    def __init__(self, id: _Optional[int] = ..., reply: _Optional[_Union[SolveReply, _Mapping]] = ..., chunk: _Optional[bytes] = ..., status: _Optional[_Union[RpcStatus, _Mapping]] = ..., many: _Optional[_Union[SolveManyReply, _Mapping]] = ..., solution_bytes: _Optional[int] = ...) -> None: ...

class SolveStreamRequest(_message.Message):
    __slots__ = ["cancel", "chunk", "id", "many", "refactor", "replace_last", "request", "timeout"]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MANY_FIELD_NUMBER: _ClassVar[int]
    REFACTOR_FIELD_NUMBER: _ClassVar[int]
    REPLACE_LAST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    cancel: Cancel
    chunk: bytes
    id: int
    many: SolveManyRequest
    refactor: FactorSolveManyRequest
    replace_last: bool
    request: SolveRequest
    timeout: _duration_pb2.Duration
    def __init__(self, id: _Optional[int] = ..., request: _Optional[_Union[SolveRequest, _Mapping]] = ..., chunk: _Optional[bytes] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., many: _Optional[_Union[SolveManyRequest, _Mapping]] = ..., refactor: _Optional[_Union[FactorSolveManyRequest, _Mapping]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., replace_last: bool = ...) -> None: ...

class SystemData(_message.Message):
    __slots__ = ["border", "corner", "coupling", "diagonal"]
    BORDER_FIELD_NUMBER: _ClassVar[int]
    CORNER_FIELD_NUMBER: _ClassVar[int]
    COUPLING_FIELD_NUMBER: _ClassVar[int]
    DIAGONAL_FIELD_NUMBER: _ClassVar[int]
    border: bytes
    corner: bytes
    coupling: bytes
    diagonal: bytes
    def __init__(self, diagonal: _Optional[bytes] = ..., coupling: _Optional[bytes] = ..., border: _Optional[bytes] = ..., corner: _Optional[bytes] = ...) -> None: ...

class SystemSpec(_message.Message):
    __slots__ = ["arrow_size", "block_size", "coupling_form", "diagonal_form", "num_blocks", "palette", "scalar"]
    ARROW_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    COUPLING_FORM_FIELD_NUMBER: _ClassVar[int]
    DIAGONAL_FORM_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PALETTE_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    arrow_size: int
    block_size: int
    coupling_form: CouplingForm
    diagonal_form: DiagonalForm
    num_blocks: int
    palette: Palette
    scalar: ScalarType
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., scalar: _Optional[_Union[ScalarType, str]] = ..., diagonal_form: _Optional[_Union[DiagonalForm, str]] = ..., coupling_form: _Optional[_Union[CouplingForm, str]] = ..., palette: _Optional[_Union[Palette, _Mapping]] = ..., arrow_size: _Optional[int] = ...) -> None: ...

class UploadJoin(_message.Message):
    __slots__ = ["first_byte", "num_bytes", "upload_id"]
    FIRST_BYTE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    first_byte: int
    num_bytes: int
    upload_id: bytes
    def __init__(self, upload_id: _Optional[bytes] = ..., first_byte: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class ScalarType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class DiagonalForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CouplingForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PriorityClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Accuracy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class InverseParts(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ModelArray(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class SmoothForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class SmoothedCovariances(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class SmoothOutput(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
