"""Build hook: a wheel built where there is a C++ compiler brings the CPU backend's kernels, compiled."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsBuildHook(BuildHookInterface[Any]):
    """Compile the kernels for every instruction set that the compiler knows."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel and give it this platform's tag; without a compiler it stays ``any``.

        An editable install needs none: what is missing or stale is compiled on first use.
        """
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root / "backends" / "cpu"))
        from pageport_cpu.compiler import compile_library, find_compiler, understands
        from pageport_cpu.instruction_sets import compilable_sets

        compiler = find_compiler()
        if compiler is None:
            self.app.display_warning(
                "No C++ compiler (c++, g++ or clang++, or what CXX names): this wheel brings no compiled kernels. "
                "The CPU backend compiles them on first use where it finds a compiler; until then it uses torch's own "
                "operations."
            )
            return
        targets = [target for target in compilable_sets() if understands(compiler, target)]
        for target in targets:
            library = compile_library(target, root / "build" / "kernels", compiler)
            build_data["force_include"][str(library)] = f"pageport_cpu/built/{library.name}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        self.app.display_info(f"Kernels compiled by {compiler} for {', '.join(target.name for target in targets)}.")
