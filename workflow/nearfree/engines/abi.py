"""C functions and structs for ctypes, declared from a header and not by hand."""

import ctypes
import re
from collections.abc import Mapping
from typing import Any

from nearfree.errors import EvidenceError

_CODES: dict[str, Any] = {
    "bool": ctypes.c_bool, "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16,
    "u16": ctypes.c_uint16, "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64, "size": ctypes.c_size_t, "f32": ctypes.c_float, "f64": ctypes.c_double,
    "pointer": ctypes.c_void_p, "void": None,
}  # fmt: skip
_STRUCT = "struct "


class Calls:
    """The functions of some libraries, each with its types from the header.

    Parameters
    ----------
    libraries
        Loaded libraries, in the order in which functions are looked up.
    structs, functions
        As in `builds.Abi`.

    Raises
    ------
    EvidenceError
        A function is in none of the libraries: they are of another release than the header.
    """

    def __init__(
        self,
        libraries: list[ctypes.CDLL],
        structs: Mapping[str, list[str]],
        functions: Mapping[str, str],
    ) -> None:
        self._structs = structs
        self._struct_types: dict[str, type[ctypes.Structure]] = {}
        self._functions = {
            name: self._bound(libraries, name, types) for name, types in functions.items()
        }

    def __getattr__(self, name: str) -> Any:
        """Return a function by its name in the header."""
        try:
            return self.__dict__["_functions"][name]
        except KeyError:
            raise AttributeError(name) from None

    def struct(self, name: str) -> type[ctypes.Structure]:
        """Return a struct as a ctypes type."""
        if name not in self._struct_types:
            codes = (field.rpartition(" ") for field in self._structs[name])
            fields = [(field, self._type(code)) for code, _, field in codes]
            self._struct_types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        return self._struct_types[name]

    def _type(self, code: str) -> Any:
        array = re.fullmatch(r"(.+)\[(\d+)\]", code)
        if array:
            return self._type(array[1]) * int(array[2])
        if code.startswith(_STRUCT):
            return self.struct(code.removeprefix(_STRUCT))
        return _CODES[code]

    def _bound(self, libraries: list[ctypes.CDLL], name: str, types: str) -> Any:
        result_code, _, parameter_codes = types.partition(" (")
        codes = [code for code in parameter_codes.rstrip(")").split(", ") if code]
        for library in libraries:
            function = getattr(library, name, None)
            if function is not None:
                function.restype = self._type(result_code)
                function.argtypes = [self._type(code) for code in codes]
                return function
        raise EvidenceError(
            f"the engine's libraries have no function {name}, which their header declares",
            remedy="They are of another release: fetch or build them again",
        )
