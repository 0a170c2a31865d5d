"""What opening a GPU needs: packages (``with_packages``: which is missing, in one sentence) and the GPU itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pageport.backend import Backend, Probe
from pageport.errors import BackendUnavailable, ConfigurationError
from pageport_triton.installed_torch import Build, InstalledTorch, find_torch, has_triton

_FROM_PYTORCH = "Install the {hardware} build that pytorch.org/get-started names, then pageport[{extra}] beside it."
_HERE = 'Run: pip install "pageport[{extra}]"'

# Products and sums are fused, as the compile check has it; triton 3.9 warns when this is not said, 3.10 changes what
# it does then.
ENVIRONMENT: Mapping[str, str] = {"TRITON_DEFAULT_FP_FUSION": "1"}


class Needs(NamedTuple):
    """What a backend needs of torch, and how its users get that."""

    build: Build
    extra: str  # of this distribution
    hardware: str  # as in "a torch built for …"
    how_to_get: str = _FROM_PYTORCH
    how_to_replace: str = "Uninstall it. " + _FROM_PYTORCH

    def advise(self, text: str) -> str:
        """Fill in the names."""
        return text.format(hardware=self.hardware, extra=self.extra)


# The torch that pip finds without being told where to look is built for CUDA.
CUDA = Needs("cuda", "cuda", "CUDA", _HERE, "Uninstall it, then run: " + _HERE.removeprefix("Run: "))
ROCM = Needs("hip", "rocm", "ROCm")
XPU = Needs("xpu", "xpu", "XPU")


def with_packages(probe: Probe, needs: Needs, path: Sequence[str] | None = None) -> Probe:
    """Return ``probe`` with the packages' versions, or why its devices cannot be used without the right ones.

    Args:
        path: folders to look for packages in; default: where imports look.
    """
    if not probe.count:
        return probe
    torch = find_torch(path)
    missing = _missing(torch, needs, path)
    if torch is None or missing:
        return Probe(count=0, reason=f"{_devices(probe)} found, but {missing}")
    built_for = getattr(torch, needs.build)
    return replace(probe, details={**probe.details, "torch": f"{torch.version}, {needs.hardware} {built_for}"})


def check_device(
    backend: type[Backend], gpus: str, ordinal: int, options: Mapping[str, str], known: Sequence[str] = ()
) -> None:
    """Refuse to open what is not there.

    Args:
        gpus: what its devices are called, as in "NVIDIA GPU".
        known: names of the options that it has.

    Raises:
        BackendUnavailable: there is no device of this number; says why, or which there are.
        ConfigurationError: there is an option that it does not have.
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise ConfigurationError(f"Unknown option {unknown[0]!r} of the {backend.name} backend: it has {listed}.")
    probe = backend.probe()
    if not 0 <= ordinal < probe.count:
        raise BackendUnavailable(
            f"There is no {gpus} {ordinal}: {probe.reason or f'they are numbered 0 … {probe.count - 1}.'}"
        )


def _missing(torch: InstalledTorch | None, needs: Needs, path: Sequence[str] | None) -> str:
    if torch is None:
        return f"torch is not installed. {needs.advise(needs.how_to_get)}"
    if getattr(torch, needs.build) is None:
        advice = needs.advise(needs.how_to_replace)
        return f"torch {torch.version} is {_described(torch)} and not one for {needs.hardware}. {advice}"
    if not has_triton(path):
        return f"triton, which compiles the kernels, is not installed. {needs.advise(needs.how_to_get)}"
    return ""


def _devices(probe: Probe) -> str:
    name = probe.details.get("device", "device")
    return name if probe.count == 1 else f"{probe.count} × {name}"


def _described(torch: InstalledTorch) -> str:
    if torch.cuda:
        return "a CUDA build"
    if torch.hip:
        return "a ROCm build"
    return "an XPU build" if torch.xpu else "a CPU build"
