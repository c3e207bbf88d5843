"""Modules that a release's kernel files import and that are not among the pinned files."""

from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

Names = Mapping[str, Mapping[str, Any]]
"""What a kernel file really uses of other modules: objects by module and name."""


class Stub(ModuleType):
    """A module that has its real names, and an empty class for any other."""

    def __init__(self, name: str, names: Names) -> None:
        super().__init__(name)
        self._modules = frozenset(names)
        vars(self).update(names.get(name, {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        attribute = import_module(full_name) if full_name in self._modules else type(name, (), {})
        setattr(self, name, attribute)
        return attribute


class Stubs(MetaPathFinder, Loader):
    """Serves all packages in `names`: a pinned file where there is one, else a stub.

    It goes first on the meta path, so that an installed engine is never taken instead.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        self.folder = folder
        self.names = names
        self.packages = {name.split(".")[0] for name in names}

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return where a module comes from; None if it is of another package."""
        if fullname.split(".", maxsplit=1)[0] not in self.packages:
            return None
        file = self.folder / (fullname.replace(".", "/") + ".py")
        if file.is_file():
            return spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> Stub:
        """Return the stub."""
        return Stub(spec.name, self.names)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stub has no code."""
