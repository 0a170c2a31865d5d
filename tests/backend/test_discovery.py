"""Every way a plugin can fail is a row with a reason; discovery itself never fails."""

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from pageport.backend.discovery import OTHER_EXTRAS, discover, is_served, select
from pageport.backend.interface import INTERFACE
from pageport.errors import BackendUnavailable, ConfigurationError

GOOD = """
    from pageport.backend import Backend, Probe, hookimpl

    class Fast(Backend):
        name = "{name}"
        priority = {priority}
        interface = {interface}

        @classmethod
        def probe(cls):
            {probe}

        def open(self, ordinal, options, rank=None):
            raise NotImplementedError

    @hookimpl
    def pageport_backends():
        return [Fast]
"""


def good(name="fast", priority=20, interface=INTERFACE, probe="return Probe(count=2)"):
    return GOOD.format(name=name, priority=priority, interface=interface, probe=probe)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a plugin module and its distribution's metadata for one test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution, source, entry_point="fast"):
        module = f"plugin_of_{distribution.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        folder = tmp_path / f"{distribution.replace('-', '_')}-3.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.1\n")
        (folder / "entry_points.txt").write_text(f"[pageport.backends]\n{entry_point} = {module}\n")

    yield install
    for name in [name for name in sys.modules if name.startswith("plugin_of_")]:
        del sys.modules[name]


def entry_named(name):
    (entry,) = [entry for entry in discover({}).entries if entry.name == name]
    return entry


def test_installed_plugin_is_found_probed_and_chosen_by_priority(install):
    install("fast-backend", good())
    entry = entry_named("fast")
    assert (entry.distribution, entry.version, entry.reason) == ("fast-backend", "3.1", "2 devices")
    backend, report = select(discover({}), "auto")
    assert backend.name == "fast"
    assert report[0] == "fast (fast-backend 3.1): chosen, 2 devices"
    assert any(line.startswith("cpu (pageport ") and "rejected, usable, but fast" in line for line in report[1:])


def test_what_a_probe_tells_of_its_devices_is_shown(install):
    install("fast-backend", good(probe='return Probe(count=2, details={"driver": "7.1", "kernels": "compiled"})'))
    assert entry_named("fast").reason == "2 devices; driver: 7.1; kernels: compiled"


def test_auto_skips_what_has_no_device_and_says_why(install):
    install("fast-backend", good(probe='return Probe(count=0, reason="No driver. Install libfast.")'))
    backend, report = select(discover({}), "auto")
    assert backend.name == "cpu"
    assert "fast (fast-backend 3.1): rejected, No driver. Install libfast." in report


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_nobody_has", "failed to load: ModuleNotFoundError: No module named 'a_module_nobody_has'"),
        ("raise SystemExit(3)", "failed to load: SystemExit: 3"),
        ("def broken(:", "failed to load: SyntaxError"),
        ("x = 1", "brings no backend: plugin bug"),
        (good().replace("return [Fast]", "return [int]"), "returned <class 'int'>, which is no subclass of Backend"),
        (good().replace("return [Fast]", "return 7"), "failed to load: TypeError"),
        (good().replace("return [Fast]", "raise OSError('disk')"), "failed to load: OSError: disk"),
        (good().replace("def pageport_backends", "def pageport_backend"), "failed to load: PluginValidationError"),
        (good().replace("def open", "def opened"), "Fast does not implement open: plugin bug"),
        (
            good(interface=(7, 2)),
            "written for interface 7.2; this pageport has {}.{}. Install versions that match".format(*INTERFACE),
        ),
        (good().replace("interface =", "written_for ="), "Fast does not say which interface it was written for"),
        (good(interface="'newest'"), "written for interface 'newest'"),
        (good(probe="raise ValueError('no bus')"), "its probe raised ValueError: no bus: plugin bug"),
        (good(probe="return 1"), "its probe returned 1 and not a Probe: plugin bug"),
        (good(probe="return Probe(count=0)"), "its probe found no device and gives no reason"),
    ],
)
def test_broken_plugin_is_a_row_and_the_others_work(install, source, reason):
    install("fast-backend", source)
    assert reason in entry_named("fast").reason
    assert select(discover({}), "auto").backend.name == "cpu"
    with pytest.raises(BackendUnavailable, match=r"Backend fast \(fast-backend 3.1\) cannot be used: "):
        select(discover({}), "fast")


@pytest.mark.parametrize("entry_points", [("fast", "fast"), ("fast", "other")])
def test_name_claimed_by_two_distributions_names_both(install, entry_points):
    install("fast-backend", good(), entry_points[0])
    install("rival", good(), entry_points[1])
    with pytest.raises(BackendUnavailable, match=r"claimed by fast-backend 3.1 and rival 3.1. Uninstall all but one"):
        select(discover({}), "fast")
    assert select(discover({}), "auto").backend.name == "cpu"


def test_named_backend_never_becomes_another(install):
    install("fast-backend", good(probe='return Probe(count=0, reason="No driver.")'))
    with pytest.raises(BackendUnavailable, match="No driver"):
        select(discover({}), "fast")


def test_unknown_name_lists_the_known_ones(install):
    install("fast-backend", good())
    with pytest.raises(BackendUnavailable, match=r"There is no backend 'fsat'. Known here: cpu, .*fast, .*auto"):
        select(discover({}), "fsat")


@pytest.mark.parametrize("wanted", ["cpu,fast", "fast, cpu", "cpu,", ",", "cpu,cpu", "cpu,no-such"])
def test_several_names_are_refused_with_what_to_do_instead(install, wanted):
    install("fast-backend", good())
    with pytest.raises(ConfigurationError) as refused:
        select(discover({}), wanted)
    message = str(refused.value)
    assert f"--backend is {wanted!r}, but an engine has one model on one backend" in message
    assert "Start a server for each (--backend " in message
    assert "one LLM for each in the same process" in message


def test_every_extra_is_a_backend_or_known_to_be_none():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    assert extras - OTHER_EXTRAS == set(project["entry-points"]["pageport.backends"])
    assert extras >= OTHER_EXTRAS


def test_backend_of_an_extra_says_what_to_install(monkeypatch):
    monkeypatch.setattr("pageport.backend.discovery._backend_extras", lambda: ["quick"])
    with pytest.raises(BackendUnavailable, match=r'Run: pip install "pageport\[quick\]"'):
        select(discover({}), "quick")


def test_restriction_leaves_plugins_unloaded(install):
    install("fast-backend", "raise SystemExit('was loaded')")
    found = discover({"PAGEPORT_BACKENDS": " cpu ,"})
    assert [entry.name for entry in found.entries] == ["cpu"]
    assert "fast" in found.left_out
    with pytest.raises(BackendUnavailable, match="is installed, but PAGEPORT_BACKENDS leaves it out"):
        select(found, "fast")


def test_nothing_usable_gives_each_reason(install):
    install("fast-backend", good(probe='return Probe(count=0, reason="No driver.")'))
    with pytest.raises(BackendUnavailable, match=r"No backend is usable here\. fast: No driver\."):
        select(discover({"PAGEPORT_BACKENDS": "fast"}), "auto")


def test_everything_left_out_says_so():
    with pytest.raises(BackendUnavailable, match=r"PAGEPORT_BACKENDS leaves out .*cpu"):
        select(discover({"PAGEPORT_BACKENDS": "none"}), "auto")


@pytest.mark.parametrize(
    ("interface", "ours", "served"),
    [
        ((0, 1), (0, 1), True),
        ((0, 1), (0, 2), False),
        ((0, 3), (0, 2), False),
        ((1, 0), (1, 4), True),
        ((1, 5), (1, 4), False),
        ((1, 9), (2, 0), True),
        ((1, 0), (3, 0), False),
        ((0, 2), (1, 0), False),
        ((2, 0), (1, 4), False),
        ((True,), (1, 0), False),
    ],
)
def test_this_and_the_last_major_version_are_served(interface, ours, served):
    assert is_served(interface, ours) is served


def test_discovery_imports_no_torch():
    code = (
        "import sys; from pageport.backend.discovery import discover, select; import pageport.backend.explain; "
        "assert select(discover(), 'cpu').backend.name == 'cpu'; "
        "print(sorted({'torch', 'transformers', 'jaxtyping'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
