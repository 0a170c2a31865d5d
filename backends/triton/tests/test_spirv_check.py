"""The check for Intel GPUs runs in an environment of its own; here it can only say so."""

import pytest

from pageport_triton import spirv_check
from pageport_triton.compiled_case import KERNEL_MODULES, cases_of


def test_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert spirv_check.main() == 1
    assert "Install triton-xpu" in capsys.readouterr().err


@pytest.mark.parametrize("module", KERNEL_MODULES)
def test_every_module_has_launches_for_it(module: str) -> None:
    assert cases_of(module, "xpu")
