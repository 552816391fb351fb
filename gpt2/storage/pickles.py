"""Files of torch.save and of pickle, read without PyTorch and without running anything that they name.

A pickle is a program: it may name any function of any module and call it. Here a name must be one of those
in NAMES, which torch.save writes for tensors, and each stands for a function of this file. Any other name is
an error, and is not looked up.

torch.save has two formats: since PyTorch 1.6 a zip file with data.pkl and an uncompressed file for each
storage, before that pickles in a row, followed by the storages. Both are mapped into memory.
"""

import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gpt2.errors import UserError, os_errors, reason

# PyTorch's names of storages, the types of their numbers as safetensors names them, and as NumPy does, which
# has no bfloat16
KINDS = {
    "FloatStorage": ("F32", "<f4"),
    "DoubleStorage": ("F64", "<f8"),
    "HalfStorage": ("F16", "<f2"),
    "BFloat16Storage": ("BF16", "<u2"),
    "LongStorage": ("I64", "<i8"),
    "IntStorage": ("I32", "<i4"),
    "ShortStorage": ("I16", "<i2"),
    "CharStorage": ("I8", "|i1"),
    "ByteStorage": ("U8", "|u1"),
    "BoolStorage": ("BOOL", "|b1"),
}
LEGACY = 0x1950A86A20F9469CFC6C  # the first object of a file in the older format
ZIP = b"PK\x03\x04"
LOCAL_HEADER = 30  # bytes of a zip file in front of an entry's name


class TorchStorage(NamedTuple):
    """Numbers in a row, of which tensors are views.

    begins   key -> position in the file; in the older format it is filled after the tensors are read
    """

    name: str
    key: str
    size: int
    begins: dict[str, int]
    content: np.ndarray


class StoredTensor(NamedTuple):
    """A tensor in a file: a strided view of a storage. offset and strides count numbers."""

    storage: TorchStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def kind(self) -> str:
        return KINDS[self.storage.name][0]

    def array(self) -> np.ndarray:
        """A read-only view of the file; bfloat16 as its bits, uint16. Raises ValueError if it is damaged."""
        name, key, size, begins, content = self.storage
        dtype = np.dtype(KINDS[name][1])
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        begin = begins[key]
        if math.prod(self.shape) and last >= size:
            raise ValueError(f"a tensor of shape {self.shape} leaves its storage of {size} numbers")
        stored = content[begin : begin + size * dtype.itemsize].view(dtype)
        if len(stored) != size:
            raise ValueError("a storage is cut short")
        strides = tuple(step * dtype.itemsize for step in self.strides)
        return np.lib.stride_tricks.as_strided(stored[self.offset :], self.shape, strides, writeable=False)


def is_torch(path: str | Path) -> bool:
    """Whether a file begins as those of torch.save do."""
    with os_errors(f"{path}: cannot be read"), open(path, "rb") as file:
        return file.read(len(ZIP)).startswith((ZIP, b"\x80\x02"))


def load(path: str | Path) -> Any:
    """The objects in a file of torch.save or pickle. An OrderedDict is a dict; a tensor a StoredTensor.

    Raises UserError for a file that is damaged, or that names anything but tensors and containers.
    """
    path = Path(path)
    with os_errors(f"{path}: cannot be read"), open(path, "rb") as file:
        try:
            if file.read(len(ZIP)) == ZIP:
                return _of_zip(path, file)
            file.seek(0)
            return _of_pickles(path, file)
        except (UserError, OSError):
            raise
        except Exception as error:  # those of a damaged pickle have no common base
            raise UserError(
                f"{path}: no file of torch.save or pickle, or damaged ({reason(error)})"
            ) from None


def _of_zip(path, file):
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if packed := [name for name, entry in entries.items() if entry.compress_type != zipfile.ZIP_STORED]:
            raise ValueError(f"{packed[0]} is compressed, which torch.save never does")
        root = next((name[: -len("data.pkl")] for name in entries if name.endswith("/data.pkl")), None)
        if root is None:
            raise ValueError("a zip file without data.pkl")
        if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        text = archive.read(f"{root}data.pkl")
    begins = {}
    for name, entry in entries.items():
        file.seek(entry.header_offset)
        header = file.read(LOCAL_HEADER)
        lengths = struct.unpack("<HH", header[-4:])  # of its name, and of padding
        begins[name.removeprefix(f"{root}data/")] = entry.header_offset + LOCAL_HEADER + sum(lengths)
    return Reader(path, BytesIO(text), begins).read()


def _of_pickles(path, file):
    """The object in a pickle, or in a file of the older format."""
    first = Reader(path, file, {}).read()
    if first != LEGACY:
        return first
    _protocol, system = (Reader(path, file, {}).read() for _ in range(2))
    if not system["little_endian"]:
        raise ValueError("its numbers are big-endian")
    reader = Reader(path, file, {})
    result = reader.read()
    for key in Reader(path, file, {}).read():
        name, count = reader.storages[key]
        if struct.unpack("<q", file.read(8)) != (count,):
            raise ValueError("a storage has another size than its tensors")
        reader.begins[key] = file.tell()
        file.seek(count * np.dtype(KINDS[name][1]).itemsize, 1)
    return result


class KnownName:
    """What a name in a pickle stands for: a function that it may call."""

    __slots__ = ("function",)

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("it changes a function")


class Ordered(dict):
    """A dict whose attributes in the file are dropped: PyTorch notes the versions of modules there."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


def _tensor(storage, offset, shape, strides, *flags):
    """torch._utils._rebuild_tensor and _rebuild_tensor_v2; flags: whether it has gradients, hooks, ..."""
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, TorchStorage) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("a tensor is made of something else")
    return StoredTensor(storage, offset, tuple(shape), tuple(strides))


NAMES = {
    ("collections", "OrderedDict"): KnownName(Ordered),
    ("torch._utils", "_rebuild_tensor"): KnownName(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): KnownName(_tensor),
    ("torch._utils", "_rebuild_parameter"): KnownName(lambda tensor, *flags: tensor),
    **{("torch", name): name for name in KINDS},
}


class Reader(pickle.Unpickler):
    """An unpickler that knows NAMES alone.

    begins     key -> position in the file, of the storages
    storages   key -> (name of its type, count), of those that were met
    """

    def __init__(self, path: Path, file: BinaryIO, begins: dict[str, int]):
        super().__init__(file)
        self.path, self.file, self.begins = path, file, begins
        self.storages: dict[str, tuple[str, int]] = {}
        self.content = np.memmap(path, np.uint8, "r").view(np.ndarray)

    def read(self) -> Any:
        """The next object of the file, after a look at the opcodes of its pickle."""
        start = self.file.tell()
        for opcode, argument, _ in pickletools.genops(self.file):
            if opcode.name == "GLOBAL":  # since protocol 4 names are on the stack: find_class alone sees them
                self.find_class(*argument.split(" ", 1))
            if opcode.name.endswith("PUT") and argument > len(self.content):
                raise ValueError("a table larger than the file")  # which would be allocated
        self.file.seek(start)
        return self.load()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise UserError(
                f"{self.path}: names {module}.{name}, and a name in a pickle may run anything; only tensors, "
                "dicts, lists, tuples, texts and numbers are read"
            )
        return NAMES[module, name]

    def persistent_load(self, pid: Any) -> TorchStorage:
        """A storage: ("storage", its type, its key, its device, its count)."""
        what, name, key, _device, count, *view = pid
        if what != "storage" or name not in KINDS or type(count) is not int or view not in ([], [None]):
            raise ValueError("it refers to what is no storage")
        self.storages[key] = name, count
        return TorchStorage(name, key, count, self.begins, self.content)
