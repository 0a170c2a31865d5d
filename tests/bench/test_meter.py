"""Whose time a run's core-seconds were."""

import json
import os
import subprocess
import sys
import time

import meter
import pytest


def test_what_is_neither_ours_nor_stolen_is_the_others() -> None:
    before, after = meter.MachineTime(busy_s=100.0, stolen_s=4.0), meter.MachineTime(busy_s=118.0, stolen_s=5.0)
    measured = meter.measure(10.0, own_s=15.0, before=before, after=after, peak_rss_mb=7.0)
    assert (measured.own_cores, measured.other_cores, measured.steal_cores) == pytest.approx((1.5, 0.3, 0.1))


@pytest.mark.parametrize(("busy_s", "stolen_s", "disturbed"), [(10.5, 0.0, False), (11.5, 0.0, True), (10, 2, True)])
def test_a_run_that_lost_more_than_a_tenth_of_a_core_is_disturbed(
    busy_s: float, stolen_s: float, disturbed: bool
) -> None:
    after = meter.MachineTime(busy_s, stolen_s)
    measured = meter.measure(10.0, own_s=10.0, before=meter.MachineTime(0.0, 0.0), after=after, peak_rss_mb=0)
    assert measured.is_disturbed is disturbed


def test_idle_and_waiting_time_is_not_busy() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [3, 1, 2, 500, 70, 4, 5, 6, 9, 9]
    measured = meter.machine_time("cpu  " + " ".join(str(field * ticks) for field in fields))
    assert measured == meter.MachineTime(busy_s=15.0, stolen_s=6.0)


def test_descendants_are_all_below_and_nothing_else() -> None:
    parents = {2: 1, 3: 2, 4: 2, 5: 3, 6: 1, 7: 6}
    assert meter.descendants(2, parents) == {2, 3, 4, 5}


def test_time_of_a_child_that_has_ended_is_ours() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass"
    with meter.Meter() as metered:
        subprocess.run([sys.executable, "-c", code], check=True)
    assert metered.measured.own_cores * metered.measured.wall_s >= 0.25


def test_waiting_costs_no_core_of_ours() -> None:
    with meter.Meter() as metered:
        time.sleep(0.2)
    assert metered.measured.own_cores < 0.2
    assert metered.measured.wall_s == pytest.approx(0.2, abs=0.15)


def test_a_result_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    meter.emit("engine", "W1", 2, **meter.throughput(100, 50, 2.0))
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line.removeprefix(meter.RESULT_PREFIX)) == {
        "engine": "engine", "workload": "W1", "run": 2, "out_tps": 25.0, "total_tps": 75.0
    }  # fmt: skip
