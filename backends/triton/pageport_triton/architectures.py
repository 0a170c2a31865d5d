"""Which class of architectures, the key of the tables of configurations, a GPU belongs to."""

from pageport.errors import BackendUnavailable

# Classes by the gfx name that ROCm gives a GPU.
AMD_CLASSES = ("gfx90a", "gfx942", "gfx950", "gfx1100")
INTERPRETER = "interpreter"
INTEL = "xpu"


def nvidia_class(capability: tuple[int, int]) -> str:
    """Return the class of a compute capability.

    Consumer GPUs from 12.0 on are newer, but have the matrix instructions and the little shared memory of 8.x.

    Raises:
        BackendUnavailable: it is older than 8.0.
    """
    major, minor = capability
    if major < 8:
        raise BackendUnavailable(f"Compute capability {major}.{minor} is older than 8.0, which the kernels need.")
    if major in (9, 10, 11):
        return "sm90" if major == 9 else "sm100"
    return "sm80"


def amd_class(architecture: str) -> str:
    """Return the class of what ROCm calls an architecture, such as ``gfx942:sramecc+:xnack-``.

    Raises:
        BackendUnavailable: the tables have no entry for it.
    """
    name = architecture.split(":")[0]
    if name not in AMD_CLASSES:
        raise BackendUnavailable(f"There are no kernels for {name}, only for {', '.join(AMD_CLASSES)}.")
    return name
