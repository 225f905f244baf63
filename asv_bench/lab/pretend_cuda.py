"""A CUDA device that is only pretended: the engine's own path for a GPU, run where there is none.

Tensors of the device say that they are on ``cuda:0`` and have shapes but no values. So the engine
takes every branch that it takes on a Hopper GPU, and whatever would cross between host and device
is noted. What is copied to the host arrives as zeros. A launched Triton kernel is noted and not
run; a replayed graph is noted and changes nothing. Times and tokens mean nothing here; operators,
copies and launches are those of a GPU.

torch's FakeTensorMode does not serve: a view of a fake CUDA tensor looks for CUDA, which the CPU's
torch is not linked with. Inside the mode tensors of the host are fake too, and the engine reads and
writes pinned memory through numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from asv_bench.errors import MeasurementFailed

DEVICE = torch.device("cuda", 0)
HOPPER = (9, 0)
MULTIPROCESSORS = 132

_META = torch.device("meta")
_MEMORY_BYTES = 140 << 30
_READS_A_VALUE = frozenset({"item", "_local_scalar_dense", "is_nonzero"})
_READS_VALUES = frozenset({"nonzero", "masked_select", "equal", "unique_consecutive", "_unique2"})
_FROM_HOST_DATA = frozenset({"tensor", "as_tensor", "asarray"})
_INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a Triton kernel, with the arguments it was called with."""

    name: str  # the kernel's own
    kernel: Any
    grid: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(slots=True)
class Traffic:
    """What reached the pretended device, or left it, since the last `clear`.

    A wait for a value (`item`, `nonzero`, a boolean mask) is a copy to the host. `launches` are
    those of kernels, outside graphs and inside captures. `streams` are those on which kernels,
    graphs and copies were launched; in a capture nothing is.
    """

    copies_to_device: int = 0
    bytes_to_device: int = 0
    copies_to_host: int = 0
    bytes_to_host: int = 0
    graph_replays: int = 0
    captures: int = 0
    launches: list[Launch] = field(default_factory=list)
    streams: set[_Stream] = field(default_factory=set)

    def clear(self) -> None:
        """Begin again at zero."""
        for one in fields(self):
            setattr(self, one.name, getattr(Traffic(), one.name))

    def to_device(self, source: torch.Tensor) -> None:
        """Note a copy from the host."""
        self.copies_to_device += 1
        self.bytes_to_device += source.nbytes
        _note_stream()

    def to_host(self, source: torch.Tensor) -> None:
        """Note a copy to the host."""
        self.copies_to_host += 1
        self.bytes_to_host += source.nbytes
        _note_stream()


_traffic = Traffic()


def _note_stream() -> None:
    """Note that something was launched on the current stream; in a capture nothing is."""
    if not _now.is_capturing:
        _traffic.streams.add(_now.stream)


class PretendTensor(torch.Tensor):
    """A tensor that says it is on the GPU; `stand_in`, a meta tensor, has its shape.

    For torch's C++ side it is a meta tensor too: otherwise torch would look for CUDA.
    """

    stand_in: torch.Tensor

    @staticmethod
    def __new__(cls, stand_in: torch.Tensor) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            stand_in.shape,
            strides=stand_in.stride(),
            storage_offset=stand_in.storage_offset(),
            dtype=stand_in.dtype,
            device=_META,
        )
        made.stand_in = stand_in
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    # The pretence.
    device = property(lambda _: DEVICE)
    is_cuda = property(lambda _: True)

    def get_device(self) -> int:
        """The device's index."""
        return 0

    def data_ptr(self) -> int:
        """Its distance from the start of its allocation, which on a GPU is aligned."""
        return int(self.stand_in.storage_offset()) * self.stand_in.element_size()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Find the result's shape, and refuse or note what a GPU would refuse or wait for."""
        kwargs = dict(kwargs or {})
        name: str = func.overloadpacket.__name__
        if name in _READS_A_VALUE:
            _traffic.to_host(args[0])
            return torch.zeros((), dtype=args[0].dtype).item()
        if name != "copy_":
            _check_places(name, args)
        elif not isinstance(args[0], PretendTensor):
            _traffic.to_host(args[1])
            return args[0].zero_()
        elif not isinstance(args[1], PretendTensor):
            _traffic.to_device(args[1])
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = _META
        outputs = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        # In place what came in is what goes out.
        return args[0] if name.endswith("_") else tree_map(_wrapped, outputs)


def _check_places(name: str, args: Sequence[Any]) -> None:
    """Refuse what would fail on a GPU or depends on values, and note the indices that travel."""
    leaves = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    on_host = [leaf for leaf in leaves if not isinstance(leaf, PretendTensor)]
    is_index = name in _INDEXED
    if name in _READS_VALUES or (is_index and any(leaf.dtype == torch.bool for leaf in leaves[1:])):
        raise MeasurementFailed(
            f"aten::{name} of a tensor on {DEVICE} must wait for its values, which a step of the "
            "engine must never do; nothing was counted."
        )
    for index in on_host if is_index else ():
        _traffic.to_device(index)
    mixed = [leaf for leaf in on_host if leaf.ndim > 0 and not is_index]
    if mixed:
        raise MeasurementFailed(
            f"aten::{name} mixes tensors on {DEVICE} with one of shape {tuple(mixed[0].shape)} on "
            "the host; on a GPU it would fail. Nothing was counted."
        )


def _inner(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.stand_in
    # An index or a scalar from the host: its shape is all that matters here.
    return value.to(_META) if isinstance(value, torch.Tensor) else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, PretendTensor):
        return PretendTensor(value)
    return value


class _Placement(TorchFunctionMode):
    """Places what is asked to be on CUDA on the pretended device.

    torch looks for CUDA in its Python bindings, before any operator is dispatched.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if kwargs.pop("pin_memory", False):
            # Pinned memory starts as whatever was there; what it starts as must not be counted on.
            return func(*args, **kwargs).zero_()
        if name in ("to", "cpu", "cuda") and isinstance(args[0], torch.Tensor):
            return _moved(name, args, kwargs)
        if name == "pin_memory":
            return args[0].clone()
        if name == "tolist" and isinstance(args[0], PretendTensor):
            _traffic.to_host(args[0])
            return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
        if name == "as_tensor" and hasattr(args[0], "__cuda_array_interface__"):
            # Memory that the device reaches where it is: nothing crosses.
            described = args[0].__cuda_array_interface__
            dtype = torch.from_numpy(np.empty(0, described["typestr"])).dtype
            return PretendTensor(torch.empty(described["shape"], dtype=dtype, device=_META))
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        if name in _FROM_HOST_DATA and not isinstance(args[0], PretendTensor):
            made = func(*args, **{**kwargs, "device": torch.device("cpu")})
            _traffic.to_device(made)
            return PretendTensor(made.to(_META))
        return _wrapped(func(*tree_map(_inner, args), **{**kwargs, "device": _META}))


def _moved(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """`Tensor.to`, `Tensor.cpu` and `Tensor.cuda`."""
    source: torch.Tensor
    source, *asked = args if name == "to" else (args[0], name)
    if asked and isinstance(asked[0], torch.Tensor):
        device, dtype = asked[0].device, asked[0].dtype
    else:
        others = {key: value for key, value in kwargs.items() if key != "copy"}
        device, dtype, _, _ = torch._C._nn._parse_to(*asked, **others)
    dtype = dtype or source.dtype
    is_there = isinstance(source, PretendTensor)
    if device is None or (device.type == "cuda") == is_there:
        # Not through this mode again: an operator of its own, as it is on a GPU.
        return source.to(dtype=dtype, copy=bool(kwargs.get("copy", False)))
    if is_there:
        _traffic.to_host(source)
        return torch.zeros(source.shape, dtype=dtype)
    _traffic.to_device(source)
    return PretendTensor(
        torch.empty_strided(source.size(), source.stride(), dtype=dtype, device=_META)
    )


class _Done:
    """An event or a graph, whose work is always done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """Do nothing."""

    synchronize = wait_event = wait_stream = record

    def query(self) -> bool:
        """Whether it has come about."""
        return True

    def replay(self) -> None:
        """Note that a graph was launched."""
        _note_stream()
        _traffic.graph_replays += 1


class _Stream(_Done):
    """A stream, told from others by its number."""

    cuda_stream = property(id)


class _Generator(torch.Generator):
    """A generator on the host, whatever device is named."""

    def __new__(cls, *_: Any) -> _Generator:
        return super().__new__(cls)


_now = SimpleNamespace(stream=_Stream(), is_capturing=False)
"""The current stream, and whether a graph is being captured."""


def _capture(*_: Any, **__: Any) -> AbstractContextManager[Any]:
    _traffic.captures += 1
    return patch.object(_now, "is_capturing", True)


@contextmanager
def pretended_cuda(capability: tuple[int, int] = HOPPER) -> Iterator[Traffic]:
    """Pretend that torch has one GPU of that compute capability, inside this block.

    The kernels remember what they learn of ``cuda:0``, so the process must not use a real GPU
    afterwards.
    """
    from triton.runtime.jit import JITFunction

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if not warmup:
            _note_stream()
            name = kernel.fn.__name__
            _traffic.launches.append(Launch(name, kernel, grid, arguments, options))
        # What a launcher may ask of a kernel that it had compiled: nothing was.
        metadata = SimpleNamespace(num_warps=options.get("num_warps", 4), shared=0)
        return SimpleNamespace(metadata=metadata)

    properties = SimpleNamespace(
        name="pretended", multi_processor_count=MULTIPROCESSORS, total_memory=_MEMORY_BYTES
    )
    replaced: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: properties,
        "is_current_stream_capturing": lambda: _now.is_capturing,
        "current_stream": lambda *_: _now.stream,
        "set_stream": lambda stream: setattr(_now, "stream", stream),
        "mem_get_info": lambda *_: (_MEMORY_BYTES, _MEMORY_BYTES),
        "synchronize": lambda *_: None,
        "device": nullcontext,
        "stream": lambda stream: patch.object(_now, "stream", stream),
        "graph_pool_handle": lambda: (0, 0),
        "graph": _capture,
        "Stream": _Stream,
        "Event": _Done,
        "CUDAGraph": _Done,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(torch.cuda, **replaced))
        stack.enter_context(patch.object(JITFunction, "run", run))
        stack.enter_context(patch.object(torch, "Generator", _Generator))
        stack.enter_context(patch.object(_now, "stream", _Stream()))
        stack.enter_context(_Placement())
        _traffic.clear()
        yield _traffic


class OperatorLedger(TorchDispatchMode):
    """Counts the aten operators that are dispatched inside its block, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count one operator and run it."""
        self.by_name[str(func.overloadpacket).replace(".", "::", 1)] += 1
        return func(*args, **(kwargs or {}))
