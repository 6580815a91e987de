"""Where tensors lie, by DLPack's table of functions in C: one made here, of which each field is known, and that of torch, if it has one."""

import ctypes

import pytest
import torch

from slamb import _native

CPU, CUDA = 1, 2
INT, FLOAT, BFLOAT = 0, 2, 4


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


class ExchangeTable(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 3),
        ("describe", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


class Described:
    """A tensor of a framework that is not torch. strides: None for no array of strides."""

    def __init__(self, data=4096, shape=(2, 3), strides=(3, 1), device=(CPU, 0), type=(FLOAT, 32, 1), offset=0):
        self.fields = (data, *device, len(shape), *type)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.offset = offset

    def write(self, to):
        for (name, _), value in zip(DLTensor._fields_, self.fields):
            setattr(to, name, value)
        to.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        to.strides = None if self.strides is None else ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        to.byte_offset = self.offset


@DESCRIBE
def describe(tensor, to):
    if not isinstance(tensor, Described):
        return -1
    tensor.write(to.contents)
    return 0


def capsule(major=1, minor=3, function=describe):
    """The table as a framework hands it out. It lives as long as the process, as DLPack asks for."""
    address = None if function is None else ctypes.cast(function, ctypes.c_void_p).value
    table = ExchangeTable(major, minor, None, (ctypes.c_void_p * 3)(), address, None)
    tables.append(table)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)


tables = []


def layouts_of(*tensors):
    return _native.TensorLayouts.of(capsule(), list(tensors))


def test_addresses_are_those_of_the_table_and_0_for_none():
    layouts = layouts_of(Described(), Described(shape=(4,), strides=(1,), type=(BFLOAT, 16, 1)))
    moved = [Described(data=640), Described(data=1024, shape=(4,), strides=(1,), type=(BFLOAT, 16, 1), offset=32)]
    assert layouts.addresses(moved) == [640, 1056]
    assert layouts.addresses([None, moved[1]]) == [0, 1056]
    assert layouts.addresses([None, None]) == [0, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (3, 2), "strides": (2, 1)},
        {"shape": (6,), "strides": (1,)},
        {"shape": (2, 3, 1), "strides": (3, 1, 1)},
        {"strides": (1, 2)},
        {"strides": (6, 2)},
        {"strides": (0, 1)},
        {"device": (CUDA, 0)},
        {"device": (CPU, 1)},
        {"type": (INT, 32, 1)},
        {"type": (FLOAT, 16, 1)},
        {"type": (FLOAT, 32, 2)},
        {"data": None},
    ],
    ids=str,
)
def test_another_layout_has_no_address(other):
    layouts = layouts_of(Described(), Described())
    assert layouts.addresses([Described(), Described(**other)]) is None
    assert layouts.addresses([Described(**other), Described()]) is None
    assert layouts.addresses([Described(), Described()]) == [4096, 4096]


@pytest.mark.parametrize(
    "shape, strides",
    [((2, 3), None), ((1, 3), (77, 1)), ((2, 1, 3), (3, 0, 1)), ((), ()), ((0, 3), (5, 7)), ((2, 0), (1, 1)), ((1,), (9,))],
    ids=str,
)
def test_contiguous_is_what_has_no_gaps_in_the_order_of_the_shape(shape, strides):
    layouts = layouts_of(Described(shape=shape, strides=strides))
    assert layouts.addresses([Described(shape=shape, strides=strides)]) == [4096]


def test_another_number_of_tensors_has_no_addresses():
    layouts = layouts_of(Described(), Described())
    assert layouts.addresses([Described()]) is None
    assert layouts.addresses([Described()] * 3) is None


def test_what_the_framework_cannot_describe_has_no_address():
    assert layouts_of(Described(), "text") is None
    assert layouts_of(Described()).addresses(["text"]) is None


def test_a_table_of_another_version_or_without_the_function_is_not_used():
    assert _native.TensorLayouts.of(capsule(major=2), [Described()]) is None
    assert _native.TensorLayouts.of(capsule(function=None), [Described()]) is None
    assert _native.TensorLayouts.of(capsule(minor=9), [Described()]) is not None


def test_the_table_of_torch_says_what_torch_says():
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        pytest.skip("this torch has no table")
    types = (torch.float32, torch.bfloat16, torch.float16)
    tensors = [torch.nn.Parameter(torch.zeros(2, 3, dtype=one)) for one in types] + [torch.zeros(()), torch.zeros(0, 5)]
    layouts = _native.TensorLayouts.of(table, tensors)
    assert layouts.addresses(tensors) == [t.data_ptr() for t in tensors]
    halves = [torch.zeros(4, 3, dtype=t.dtype)[1:3] for t in tensors[:3]] + tensors[3:]
    assert layouts.addresses(halves) == [t.data_ptr() for t in halves]
    # The description of a sparse tensor sets an exception of Python, which must not remain.
    for other in (torch.zeros(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3).to_sparse()):
        assert layouts.addresses([other] + tensors[1:]) is None
